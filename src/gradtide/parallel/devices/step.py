"""One step of training on several devices: forward and backward side by side, synchronise, update."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.collective import check_strategy, sum_over_devices
from gradtide.errors import ConfigError, PeerLost, PeerTimeout
from gradtide.events import Emit, GradientsReady, GradientsSynchronised, ParametersUpdated, ignore
from gradtide.parallel.devices.batches import DeviceBatch
from gradtide.parallel.devices.losses import Loss, LossFn, Weighed
from gradtide.parallel.devices.pool import DevicePool
from gradtide.parallel.devices.randomness import DeviceRandom
from gradtide.parallel.devices.replicas import Replica

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
) -> BatchResult:
    """Takes one step on every replica with the gradient of the whole batch; afterwards all hold the same parameters.

    `loss_fn` gives the mean over a shard. Weighing it by the shard's share of the terms (of the samples, mostly) makes
    the sum of the devices' gradients that of the mean over the batch. (Eight arguments: these are the textbook's own
    pieces, side by side, for the person who reads a training loop to understand it; `fit` is for everybody else.)
    """
    loss = Loss.of(loss_fn)
    weighed = loss.begin(shards, split=len(shards) > 1)
    loss.refuse_nothing(weighed.terms)

    def update(index: int) -> None:
        replicas[index].gradients.hand_out(used)
        optimizers[index].step()
        optimizers[index].zero_grad(set_to_none=True)

    seen, used = _forward_and_backward(replicas, shards, (loss, weighed), pool, randomness)
    emit(GradientsReady())
    emit(GradientsSynchronised(_synchronise(replicas, strategy, pool)))
    pool.run(update)
    emit(ParametersUpdated())
    return _result(seen, shards, weighed)


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
    weighed = loss.begin(shards, split=True)
    if loss.terms.is_sum and shards[0].of is None:
        raise ConfigError("a sum over a worker's part of a batch needs to know the batch's size: split_batch(..., of=)")
    if not _weigh(model, loss, weighed):
        return BatchResult(0.0, 0, 0, 0.0)
    if len(replicas) == 1:
        seen = [_backward(replicas[0], shards[0], loss, weighed.weights[0], randomness[0] if randomness else None)]
        model.step()
        return _result(seen, shards, weighed)
    with model.no_sync():
        seen, used = _forward_and_backward(replicas, shards, (loss, weighed), pool, randomness)
    emit(GradientsReady())
    _synchronise(replicas, strategy, pool)
    replicas[0].gradients.hand_out(used)
    for replica in replicas[1:]:
        replica.module.zero_grad(set_to_none=True)
    model.step()
    spread_parameters(replicas, pool)
    emit(ParametersUpdated())
    return _result(seen, shards, weighed)


_Seen = tuple[float, int | None]  # a shard's share of the loss, and how many were right


def _weigh(model: "Synchroniser", loss: Loss, weighed: Weighed) -> bool:
    """Tells the other workers over how many terms our mean is, where that is not our share of the samples.

    A worker that died is noticed here first. The step notices it too, and knows how to go on without it, if the job
    can: then this batch comes again.
    """
    if loss.terms.count is None:
        return True
    try:
        model.weigh(weighed.terms)
    except (PeerLost, PeerTimeout):
        model.step()
        return False
    return True


def _backward(
    replica: Replica, shard: DeviceBatch, loss: Loss, weight: float, randomness: DeviceRandom | None
) -> _Seen:
    with randomness or nullcontext():
        outputs = replica.module(shard.inputs)
    correct = count_correct(outputs, shard.targets)
    if weight == 0:  # a mean over nothing is not a number; it counts nothing, whatever it is
        _backward_nothing(outputs)
        return 0.0, correct
    value = loss(outputs, shard.targets) * weight
    value.backward()
    return value.item(), correct


def _backward_nothing(outputs: Any) -> None:
    """Gradients of zero; but for batch normalisation over all devices, whose backward others wait for."""
    found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(found, [torch.zeros_like(leaf) for leaf in found])


def _forward_and_backward(
    replicas: Sequence[Replica],
    shards: Sequence[DeviceBatch],
    losses: tuple[Loss, Weighed],
    pool: DevicePool,
    randomness: Sequence[DeviceRandom | None] | None,
) -> tuple[list[_Seen], list[bool]]:
    """Afterwards each replica's gradients are in its buffer. Also returns which parameters any device used."""

    loss, weighed = losses

    def work(index: int) -> tuple[_Seen, list[bool]]:
        replica = replicas[index]
        if index >= len(shards):
            replica.gradients.clear()
            return (0.0, 0), [False] * len(replica.gradients.parameters)
        drawing = randomness[index] if randomness else None
        seen = _backward(replica, shards[index], loss, weighed.weights[index], drawing)
        return seen, replica.gradients.collect()

    done = pool.run(work, len(shards)) + [work(index) for index in range(len(shards), len(replicas))]
    used = [any(of_device) for of_device in zip(*(used for _, used in done), strict=True)]
    return [seen for seen, _ in done], used


def _result(seen: Sequence[_Seen], shards: Sequence[DeviceBatch], weighed: Weighed) -> BatchResult:
    corrects = [correct for _, correct in seen]
    correct = None if None in corrects else sum(c for c in corrects if c is not None)
    samples = sum(len(shard.inputs) for shard in shards)
    return BatchResult(sum(loss for loss, _ in seen), correct, samples, weighed.terms)


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


def count_correct(outputs: Tensor, targets: Tensor) -> int | None:
    """How many samples are in the right class, or None where outputs are not scores of classes."""
    if targets.is_floating_point() or targets.dim() != 1 or outputs.dim() != 2:
        return None
    return int((outputs.argmax(1) == targets).sum())
