"""Loss, accuracy, metrics and predictions on all devices and workers at once."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from gradtide.calling import refuse_foreign_names
from gradtide.collective import Group
from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.even_share import even_share
from gradtide.parallel import Device, DeviceBatch, DevicePool, Replica, find_devices, replicate, split_batch
from gradtide.parallel.devices.losses import Loss, LossFn, LossTerms
from gradtide.parallel.devices.nested import cut_rows, length, moved
from gradtide.parallel.devices.shapes import LossGiven, ModelGiven
from gradtide.parallel.devices.step import count_correct
from gradtide.train.arguments import EVALUATE, check_model
from gradtide.train.settings import check_precision
from gradtide.train.source import Batch, BatchSource, as_first_worker, as_source, read_ahead, with_targets
from gradtide.train.steering.metrics import Metrics
from gradtide.train.steering.outputs import gather_rows, join_rows
from gradtide.train.steering.weights import WeightedLoss, count_weights

__all__ = ["Evaluation", "add_evaluations", "evaluate", "evaluate_replicas", "make_loss", "predict"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model does on data that it was not trained on."""

    loss: float  # mean over the terms; of a sum, the mean over the batches, each counting its samples
    accuracy: float | None  # None where the targets are not classes
    samples: int
    terms: float  # the samples, unless the loss ignores targets, or weighs them by class
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        summed_loss: float,
        terms: float,
        correct: int | None,
        samples: int,
        metrics: Mapping[str, float] | None = None,
    ) -> "Evaluation":
        loss = summed_loss / terms if terms else math.nan  # a worker may have got none
        accuracy = None if correct is None else correct / samples if samples else math.nan
        return cls(loss, accuracy, samples, terms, dict(metrics or {}))


@refuse_foreign_names(EVALUATE)
def evaluate(
    model: nn.Module,
    data: Any,
    devices: int | str | Sequence[str] = 1,
    batch_size: int = 1024,
    loss: str | LossFn = "cross_entropy",
    loss_terms: LossTerms = None,
    *,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    precision: str | None = None,
    alone: bool = False,
) -> Evaluation:
    """Evaluates a model on data, and returns `.loss`, `.accuracy`, `.samples` and `.metrics`; the model stays as it is.

    `data`, `devices`, `loss`, `loss_terms`, `metrics` and `precision` are those of `fit`. `batch_size` counts the
    samples that all devices take at once. Raises ConfigError for an argument that makes no sense, and DataError for
    data. In a job all workers call it, each computes its
    part, and all get the figures of all; with `alone=True` this worker computes everything by itself.
    """
    check_model(model)
    found, group = find_devices(devices), None if alone else _group()
    source = _for_all(as_source(data, batch_size, shuffle=False), group)
    measure = make_loss(loss, loss_terms, source, found)
    measure.precision = check_precision(precision)
    with DevicePool(found) as pool:
        cut = _part_of(group, found)
        gather = None if group is None else partial(gather_rows, group)
        own = evaluate_replicas(replicate(model, found), source, measure, pool, cut, Metrics(metrics), gather)
    return own if group is None else add_evaluations(own, group.all_reduce)


def make_loss(loss: str | LossFn, loss_terms: LossTerms, source: BatchSource, devices: Sequence[Device]) -> Loss:
    """The loss of such data: with sample weights, the mean by these."""
    where = [device.torch_device for device in devices]
    if not source.weighted:
        return Loss(loss, loss_terms, where)
    if loss_terms is not None:
        raise ConfigError("loss_terms= and sample weights both say what counts how much; leave one of them out")
    made = Loss(WeightedLoss(loss), count_weights, where)  # type: ignore[arg-type]
    made.weighted = True
    return made


def predict(
    model: nn.Module,
    data: Any,
    devices: int | str | Sequence[str] = 1,
    batch_size: int = 1024,
    *,
    precision: str | None = None,
    alone: bool = False,
) -> Any:
    """What the model gives for every sample, in the data's order, on the CPU.

    `data` is the inputs alone (a tensor, an array, a DataLoader of them), or what `evaluate` takes, whose targets are
    ignored. `devices`, `batch_size` and `precision` are those of `evaluate`. In a job all workers call it, each
    computes its part, and all get everything. With `alone=True` this worker computes everything by itself. Raises
    ConfigError for a DataLoader that shuffles, and DataError for data that it can't read.
    """
    check_model(model)
    found, group, parts = find_devices(devices), None if alone else _group(), list[Any]()
    casting = partial(_casting, check_precision(precision))
    if isinstance(data, DataLoader) and _shuffles(data):
        raise ConfigError("predict gives results in the data's order, and this DataLoader shuffles; use shuffle=False")
    source = _for_all(as_source(with_targets(data), batch_size, shuffle=False, targets=False), group)
    cut = _part_of(group, found)
    replicas = replicate(model, found)
    with DevicePool(found) as pool, _evaluating(replicas):

        def forward(index: int) -> Any:
            module, inputs = replicas[index].module, shards[index].inputs
            with torch.no_grad(), casting(shards[index].device), ModelGiven(module, inputs):
                return module(inputs)

        for batch, shards in read_ahead((batch, cut(batch)) for batch in source.read(0)):
            outputs = pool.run(forward, len(shards)) if shards else []
            with casting(replicas[0].device.torch_device):
                rows = _rows(replicas, batch, shards, outputs)
            parts.append(rows if group is None else gather_rows(group, rows, length(batch[0])))
    return join_rows(parts, [length(part) for part in parts])


def _casting(precision: torch.dtype | None, device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if precision is None else torch.autocast(device.type, precision)


def _shuffles(loader: DataLoader[Any]) -> bool:
    drawn = RandomSampler | SubsetRandomSampler | WeightedRandomSampler
    return isinstance(loader.sampler, drawn) or isinstance(getattr(loader.batch_sampler, "sampler", None), drawn)


def _group() -> Group | None:
    """The workers of the job that this process is in; None if it is alone."""
    if read_environment().launch is None:
        return None
    from gradtide.sync import current_job

    return current_job().group


def _for_all(source: BatchSource, group: Group | None) -> BatchSource:
    """In the same order on all workers."""
    return source if group is None else replace(source, read=lambda epoch: as_first_worker(source.read(epoch), group))


def _part_of(group: Group | None, devices: Sequence[Device]) -> Callable[[Batch], list[DeviceBatch]]:
    """Cuts our part of a batch for the devices; nothing if the batch is that small."""

    def cut(batch: Batch) -> list[DeviceBatch]:
        samples = length(batch[0])
        begin, end = (0, samples) if group is None else even_share(samples, group.rank, group.size)
        return [] if begin == end else split_batch(cut_rows(batch, begin, end), devices, samples)

    return cut


def add_evaluations(own: Evaluation, add_up: Callable[[Tensor], Tensor]) -> Evaluation:
    """What all workers have seen; metrics are of all already."""
    loss = own.loss * own.terms if own.terms else 0.0
    correct = round((own.accuracy or 0.0) * own.samples) if own.samples else 0
    sums = torch.tensor([loss, own.terms, correct, own.samples, own.accuracy is None], dtype=torch.float64)
    summed, terms, right, samples, without = add_up(sums).tolist()
    return Evaluation.of(summed, terms, None if without else int(right), int(samples), own.metrics)


def evaluate_replicas(
    replicas: Sequence[Replica],
    source: BatchSource,
    loss: Loss,
    pool: DevicePool,
    cut: Callable[[Batch], list[DeviceBatch]],
    metrics: Metrics | None = None,
    gather: Callable[[Any, int], Any] | None = None,
) -> Evaluation:
    """Each device takes its shard of every batch. Device 0's buffers (running statistics) are everybody's.

    `gather` makes whole batches of the workers' parts, for the metrics.
    """

    def forward(index: int) -> tuple[float, int | None, Any]:
        module, shard, weight = replicas[index].module, shards[index], weighed.weights[index]
        with torch.no_grad(), loss.casting(shard.device):
            with ModelGiven(module, shard.inputs):
                outputs = module(shard.inputs)
            plain = loss.plain_targets(shard.targets)
            with LossGiven(outputs, plain):
                value = loss(outputs, shard.targets).item() if weight else 0.0
                correct = count_correct(outputs, plain)
        return value * weight * weighed.terms, correct, outputs if metrics else None

    total, terms, correct, samples, classes = 0.0, 0.0, 0, 0, True
    metrics = metrics or None
    if metrics:
        metrics.reset()
    with _evaluating(replicas):
        shards: list[DeviceBatch]
        for batch, shards in read_ahead((batch, cut(batch)) for batch in source.read(0)):
            seen: list[tuple[float, int | None, Any]] = []
            if shards:
                weighed = loss.begin(shards, split=len(replicas) > 1)
                seen = pool.run(forward, len(shards))
                samples, terms = samples + sum(shard.samples for shard in shards), terms + weighed.terms
            for summed, right, _ in seen:
                total, correct, classes = total + summed, correct + (right or 0), classes and right is not None
            if metrics:
                with loss.casting(replicas[0].device.torch_device):
                    rows, whole = _rows(replicas, batch, shards, [outputs for _, _, outputs in seen]), length(batch[0])
                metrics.update(rows if gather is None else gather(rows, whole), loss.plain_targets(batch[1]), whole)
    found = metrics.compute() if metrics else {}
    return Evaluation.of(total, terms, correct if classes else None, samples, found)


def _rows(replicas: Sequence[Replica], batch: Batch, shards: Sequence[DeviceBatch], outputs: Sequence[Any]) -> Any:
    """What the devices gave, as one. Who got no sample computes one, to know the shape of nothing."""
    if shards:
        return join_rows(outputs, [shard.samples for shard in shards])
    with torch.no_grad():
        first = replicas[0]
        one = first.module(moved(cut_rows(batch[0], 0, 1), first.device.torch_device))
    return cut_rows(join_rows([one], [1]), 0, 0)


@contextmanager
def _evaluating(replicas: Sequence[Replica]) -> Iterator[None]:
    _share_buffers(replicas)
    was_training = [(module, module.training) for replica in replicas for module in replica.module.modules()]
    for replica in replicas:
        replica.module.eval()
    try:
        yield
    finally:
        for module, training in was_training:  # each by itself: a part may be in eval mode for good
            module.training = training


def _share_buffers(replicas: Sequence[Replica]) -> None:
    with torch.no_grad():
        for replica in replicas[1:]:
            for mine, first in zip(replica.module.buffers(), replicas[0].module.buffers(), strict=True):
                mine.copy_(first)
