"""One step of training on several devices: forward and backward side by side, synchronise, update."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.collective import check_strategy, sum_over_devices
from gradtide.errors import ConfigError, PeerLost, PeerTimeout
from gradtide.events import Emit, GradientsReady, GradientsSynchronised, ParametersUpdated, ignore
from gradtide.parallel.devices.batches import DeviceBatch
from gradtide.parallel.devices.losses import Loss, LossFn
from gradtide.parallel.devices.pool import DevicePool
from gradtide.parallel.devices.randomness import DeviceRandom
from gradtide.parallel.devices.replicas import Replica
from gradtide.parallel.devices.shapes import LossGiven, ModelGiven

if TYPE_CHECKING:
    from gradtide.sync.synchroniser import Synchroniser

__all__ = ["BatchResult", "check_strategy", "count_correct", "spread_parameters", "train_batch", "train_part"]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one step saw, before its update."""

    loss: float
    correct: int | None  # None where the targets are not classes
    samples: int
    terms: float  # that the loss is a mean over: the samples, unless some targets count less than others


def train_batch(
    replicas: Sequence[Replica],
    optimizers: Sequence[torch.optim.Optimizer],
    shards: Sequence[DeviceBatch],
    loss_fn: LossFn,
    pool: DevicePool,
    strategy: str = "sharded",
    randomness: Sequence[DeviceRandom | None] | None = None,
    emit: Emit = ignore,
    *,
    clip_norm: float | None = None,
) -> BatchResult:
    """Takes one step on every replica with the gradient of the whole batch; afterwards all hold the same parameters.

    `loss_fn` gives the mean over a shard. Weighing it by the shard's share of the terms (of the samples, mostly) makes
    the sum of the devices' gradients that of the mean over the batch. (Eight arguments: these are the textbook's own
    pieces, side by side, for the person who reads a training loop to understand it; `fit` is for everybody else.)
    """
    loss = Loss.of(loss_fn)
    parts, terms = _begin(loss, shards, of_several=False)
    loss.refuse_nothing(terms)

    def update(index: int) -> None:
        if len(replicas) > 1:
            replicas[index].gradients.hand_out(used)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(replicas[index].gradients.parameters, clip_norm)
        optimizers[index].step()
        optimizers[index].zero_grad(set_to_none=True)

    seen, used = _forward_and_backward(replicas, parts, loss, pool, randomness)
    emit(GradientsReady())
    emit(GradientsSynchronised(_synchronise(replicas, strategy, pool) if len(replicas) > 1 else 0))
    pool.run(update)
    emit(ParametersUpdated())
    return _result(seen, shards, terms)


def train_part(
    replicas: Sequence[Replica],
    model: "Synchroniser",
    shards: Sequence[DeviceBatch],
    loss_fn: LossFn,
    pool: DevicePool,
    strategy: str = "sharded",
    randomness: Sequence[DeviceRandom | None] | None = None,
    emit: Emit = ignore,
) -> BatchResult:
    """Takes one step together with the other workers; `model` synchronises the first replica, `shards` are of our part.

    With several devices it goes as in the textbook: their gradients are added up here, one sum leaves this worker,
    is added to those of the others, the parameters are updated, come back, and are spread to the devices.
    With one device gradients leave while backward goes on. (Eight arguments, as `train_batch`.)
    """
    loss = Loss.of(loss_fn)
    parts, terms = _begin(loss, shards, of_several=True)
    if loss.terms.is_sum and shards[0].of is None:
        raise ConfigError("a sum over a worker's part of a batch needs to know the batch's size: split_batch(..., of=)")
    if not _weigh(model, loss, terms):
        return BatchResult(0.0, 0, 0, 0.0)
    if len(replicas) == 1:
        seen = _one_device(replicas[0], model, parts[0], loss, randomness[0] if randomness else None)
        model.step()
        return _result(seen, shards, terms)
    with model.no_sync():
        seen, used = _forward_and_backward(replicas, parts, loss, pool, randomness)
    emit(GradientsReady())
    _synchronise(replicas, strategy, pool)
    replicas[0].gradients.hand_out(used)
    for replica in replicas[1:]:
        replica.module.zero_grad(set_to_none=True)
    model.step()
    spread_parameters(replicas, pool)
    emit(ParametersUpdated())
    return _result(seen, shards, terms)


_Seen = tuple[float, int | None]  # a part's share of the loss, and how many were right
_Part = tuple[DeviceBatch, float]  # a piece of a shard, and what its loss counts


def _begin(loss: Loss, shards: Sequence[DeviceBatch], *, of_several: bool) -> tuple[list[list[_Part]], float]:
    """For each device the pieces of its shard, with what each counts; and the terms of all. `of_several`: workers."""
    pieces = [shard.cut() for shard in shards]
    flat = [piece for of_device in pieces for piece in of_device]
    weighed = loss.begin(flat, split=of_several or len(flat) > 1)
    weights = iter(weighed.weights)
    return [[(piece, next(weights)) for piece in of_device] for of_device in pieces], weighed.terms


def _one_device(
    replica: Replica, model: "Synchroniser", parts: Sequence[_Part], loss: Loss, randomness: DeviceRandom | None
) -> list[_Seen]:
    """The gradient of the last piece leaves while backward goes on, and with it what was added up before."""
    seen = []
    for number, part in enumerate(parts, 1):
        with nullcontext() if number == len(parts) else model.no_sync():
            seen.append(_backward(replica, part, loss, randomness))
    return seen


def _weigh(model: "Synchroniser", loss: Loss, terms: float) -> bool:
    """Tells the other workers over how many terms our mean is, where that is not our share of the samples.

    A worker that died is noticed here first. The step notices it too, and knows how to go on without it, if the job
    can: then this batch comes again.
    """
    if loss.terms.count is None:
        return True
    try:
        model.weigh(terms)
    except (PeerLost, PeerTimeout):
        model.step()
        return False
    return True


def _backward(replica: Replica, part: _Part, loss: Loss, randomness: DeviceRandom | None) -> _Seen:
    batch, weight = part
    given = ModelGiven(replica.module, batch.inputs)
    with loss.casting(replica.device.torch_device), randomness or nullcontext(), given:
        outputs = replica.module(batch.inputs)
    plain = loss.plain_targets(batch.targets)
    with LossGiven(outputs, plain):
        correct = count_correct(outputs, plain)
    if weight == 0:  # a mean over nothing is not a number; it counts nothing, whatever it is
        _backward_nothing(outputs)
        return 0.0, correct
    with loss.casting(replica.device.torch_device), LossGiven(outputs, plain):
        value = loss(outputs, batch.targets) * weight
    value.backward()
    return value.item(), correct


def _backward_nothing(outputs: Any) -> None:
    """Gradients of zero; but for batch normalisation over all devices, whose backward others wait for."""
    found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(found, [torch.zeros_like(leaf) for leaf in found])


def _forward_and_backward(
    replicas: Sequence[Replica],
    parts: Sequence[Sequence[_Part]],
    loss: Loss,
    pool: DevicePool,
    randomness: Sequence[DeviceRandom | None] | None,
) -> tuple[list[_Seen], list[bool]]:
    """Afterwards each replica's gradients are in its buffer. Also returns which parameters any device used."""

    def work(index: int) -> tuple[list[_Seen], list[bool]]:
        replica = replicas[index]
        if index >= len(parts):
            replica.gradients.clear()
            return [], [False] * len(replica.gradients.parameters)
        drawing = randomness[index] if randomness else None
        seen = [_backward(replica, part, loss, drawing) for part in parts[index]]
        if len(replicas) == 1:  # its .grad is the whole gradient already, of whatever layout
            return seen, []
        return seen, replica.gradients.collect()

    done = pool.run(work, len(parts)) + [work(index) for index in range(len(parts), len(replicas))]
    used = [any(of_device) for of_device in zip(*(used for _, used in done), strict=True)]
    return [one for seen, _ in done for one in seen], used


def _result(seen: Sequence[_Seen], shards: Sequence[DeviceBatch], terms: float) -> BatchResult:
    corrects = [correct for _, correct in seen]
    correct = None if None in corrects else sum(c for c in corrects if c is not None)
    samples = sum(shard.samples for shard in shards)
    return BatchResult(sum(loss for loss, _ in seen), correct, samples, terms)


def spread_parameters(replicas: Sequence[Replica], pool: DevicePool) -> None:
    """The first replica's parameters become everybody's."""
    first = tuple(replicas[0].gradients.parameters)

    def copy(index: int) -> None:
        if index:
            with torch.no_grad():
                torch._foreach_copy_(tuple(replicas[index].gradients.parameters), first)

    pool.run(copy)


def _synchronise(replicas: Sequence[Replica], strategy: str, pool: DevicePool) -> int:
    buffers = zip(*(replica.gradients.buffers for replica in replicas), strict=True)
    return sum(sum_over_devices(of_devices, strategy, each=pool.run) for of_devices in buffers)


def count_correct(outputs: Any, targets: Any) -> int | None:
    """How many samples are in the right class, or None where outputs are not scores of classes."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if targets.is_floating_point() or targets.dim() != 1 or outputs.dim() != 2:
        return None
    return int((outputs.argmax(1) == targets).sum())
