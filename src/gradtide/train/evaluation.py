"""Loss and accuracy on all devices at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from gradtide.parallel import DeviceBatch, DevicePool, Replica, find_devices, replicate, split_batch
from gradtide.parallel.devices.losses import Loss, LossFn, LossTerms
from gradtide.parallel.devices.step import count_correct
from gradtide.train.source import Batch, BatchSource, as_source, read_ahead

__all__ = ["Evaluation", "evaluate", "evaluate_replicas"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model does on data that it was not trained on."""

    loss: float  # mean over the terms; of a sum, the mean over the batches, each counting its samples
    accuracy: float | None  # None where the targets are not classes
    samples: int
    terms: float  # the samples, unless the loss ignores targets, or weighs them by class

    @classmethod
    def of(cls, summed_loss: float, terms: float, correct: int | None, samples: int) -> "Evaluation":
        loss = summed_loss / terms if terms else math.nan  # a worker may have got none
        if samples == 0:
            return cls(loss, None if correct is None else math.nan, 0, terms)
        return cls(loss, None if correct is None else correct / samples, samples, terms)


def evaluate(
    model: nn.Module,
    data: Any,
    devices: int | str | Sequence[str] = 1,
    batch_size: int = 1024,
    loss: str | LossFn = "cross_entropy",
    loss_terms: LossTerms = None,
) -> Evaluation:
    """Evaluates a model on tensors, a Dataset or a DataLoader; the model is copied and not changed.

    `loss` and `loss_terms` are those of `fit`.
    """
    found = find_devices(devices)
    measure, source = (
        Loss(loss, loss_terms, [d.torch_device for d in found]),
        as_source(data, batch_size, shuffle=False),
    )
    with DevicePool(found) as pool:
        return evaluate_replicas(replicate(model, found), source, measure, pool, partial(split_batch, devices=found))


def evaluate_replicas(
    replicas: Sequence[Replica],
    source: BatchSource,
    loss: Loss,
    pool: DevicePool,
    cut: Callable[[Batch], list[DeviceBatch]],
) -> Evaluation:
    """Each device takes its shard of every batch. Device 0's buffers (running statistics) are everybody's."""
    _share_buffers(replicas)

    def forward(index: int) -> tuple[float, int | None]:
        module, shard, weight = replicas[index].module, shards[index], weighed.weights[index]
        with torch.no_grad():
            outputs = module(shard.inputs)
            value = loss(outputs, shard.targets).item() if weight else 0.0
        return value * weight * weighed.terms, count_correct(outputs, shard.targets)

    was_training = [replica.module.training for replica in replicas]
    for replica in replicas:
        replica.module.eval()
    total, terms, correct, samples = 0.0, 0.0, 0, 0
    classes = True
    try:
        shards: list[DeviceBatch]
        for shards in read_ahead(cut(batch) for batch in source.read(0)):
            if not shards:
                continue
            weighed = loss.begin(shards, split=len(replicas) > 1)
            for summed, right in pool.run(forward, len(shards)):
                total, correct, classes = total + summed, correct + (right or 0), classes and right is not None
            samples, terms = samples + sum(len(shard.inputs) for shard in shards), terms + weighed.terms
    finally:
        for replica, training in zip(replicas, was_training, strict=True):
            replica.module.train(training)
    return Evaluation.of(total, terms, correct if classes else None, samples)


def _share_buffers(replicas: Sequence[Replica]) -> None:
    with torch.no_grad():
        for replica in replicas[1:]:
            for mine, first in zip(replica.module.buffers(), replicas[0].module.buffers(), strict=True):
                mine.copy_(first)
