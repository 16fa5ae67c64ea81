"""One step of training on several devices: forward and backward side by side, synchronise, update."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradtide.collective import all_reduce, check_strategy
from gradtide.events import Emit, GradientsReady, GradientsSynchronised, ParametersUpdated, ignore
from gradtide.parallel.batches import Shard
from gradtide.parallel.devices import DevicePool
from gradtide.parallel.randomness import DeviceRandom
from gradtide.parallel.replicas import Replica

if TYPE_CHECKING:
    from gradtide.parallel.data_parallel import DataParallel

__all__ = ["BatchResult", "LossFn", "check_strategy", "count_correct", "spread_parameters", "train_batch", "train_part"]

LossFn = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean loss of the samples


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one step saw, before its update."""

    loss: float
    correct: int | None  # None where the targets are not classes
    samples: int


def train_batch(
    replicas: Sequence[Replica],
    optimizers: Sequence[torch.optim.Optimizer],
    shards: Sequence[Shard],
    loss_fn: LossFn,
    pool: DevicePool,
    strategy: str = "sharded",
    randomness: Sequence[DeviceRandom | None] | None = None,
    emit: Emit = ignore,
) -> BatchResult:
    """Takes one step on every replica with the gradient of the whole batch; afterwards all hold the same parameters.

    `loss_fn` gives the mean over a shard. Weighing it by the shard's share of the samples makes the sum of the
    devices' gradients that of the mean over the batch. (Eight arguments: these are the textbook's own pieces, side by
    side, for the person who reads a training loop to understand it; `fit` is for everybody else.)
    """

    def update(index: int) -> None:
        replicas[index].gradients.hand_out(used)
        optimizers[index].step()
        optimizers[index].zero_grad(set_to_none=True)

    seen, used = _forward_and_backward(replicas, shards, loss_fn, pool, randomness)
    emit(GradientsReady())
    emit(GradientsSynchronised(_synchronise(replicas, strategy, pool)))
    pool.run(update)
    emit(ParametersUpdated())
    return _result(seen, shards)


def train_part(
    replicas: Sequence[Replica],
    model: "DataParallel",
    shards: Sequence[Shard],
    loss_fn: LossFn,
    pool: DevicePool,
    strategy: str = "sharded",
    randomness: Sequence[DeviceRandom | None] | None = None,
    emit: Emit = ignore,
) -> BatchResult:
    """Takes one step together with the other workers; `model` wraps the first replica, `shards` are of our part alone.

    With several devices it goes as in the textbook: their gradients are added up here, one sum leaves this worker,
    is added to those of the others, the parameters are updated, come back, and are spread to the devices.
    With one device gradients leave while backward goes on. (Eight arguments, as `train_batch`.)
    """
    if len(replicas) == 1:
        seen = [_backward(replicas[0], shards[0], loss_fn, randomness[0] if randomness else None)]
        model.step()
        return _result(seen, shards)
    with model.no_sync():
        seen, used = _forward_and_backward(replicas, shards, loss_fn, pool, randomness)
    emit(GradientsReady())
    _synchronise(replicas, strategy, pool)
    replicas[0].gradients.hand_out(used)
    for replica in replicas[1:]:
        replica.module.zero_grad(set_to_none=True)
    model.step()
    spread_parameters(replicas, pool)
    emit(ParametersUpdated())
    return _result(seen, shards)


_Seen = tuple[float, int | None]  # a shard's share of the loss, and how many were right


def _backward(replica: Replica, shard: Shard, loss_fn: LossFn, randomness: DeviceRandom | None) -> _Seen:
    with randomness or nullcontext():
        outputs = replica.module(shard.inputs)
    loss = loss_fn(outputs, shard.targets) * shard.weight
    loss.backward()
    return loss.item(), count_correct(outputs, shard.targets)


def _forward_and_backward(
    replicas: Sequence[Replica],
    shards: Sequence[Shard],
    loss_fn: LossFn,
    pool: DevicePool,
    randomness: Sequence[DeviceRandom | None] | None,
) -> tuple[list[_Seen], list[bool]]:
    """Afterwards each replica's gradients are in its buffer. Also returns which parameters any device used."""

    def work(index: int) -> tuple[_Seen, list[bool]]:
        replica = replicas[index]
        if index >= len(shards):
            replica.gradients.clear()
            return (0.0, 0), [False] * len(replica.gradients.parameters)
        seen = _backward(replica, shards[index], loss_fn, randomness[index] if randomness else None)
        return seen, replica.gradients.collect()

    done = pool.run(work, len(shards)) + [work(index) for index in range(len(shards), len(replicas))]
    used = [any(of_device) for of_device in zip(*(used for _, used in done), strict=True)]
    return [seen for seen, _ in done], used


def _result(seen: Sequence[_Seen], shards: Sequence[Shard]) -> BatchResult:
    corrects = [correct for _, correct in seen]
    correct = None if None in corrects else sum(c for c in corrects if c is not None)
    return BatchResult(sum(loss for loss, _ in seen), correct, sum(len(shard.inputs) for shard in shards))


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
    return sum(all_reduce(of_devices, strategy, each=pool.run) for of_devices in buffers)


def count_correct(outputs: Tensor, targets: Tensor) -> int | None:
    """How many samples are in the right class, or None where outputs are not scores of classes."""
    if targets.is_floating_point() or targets.dim() != 1 or outputs.dim() != 2:
        return None
    return int((outputs.argmax(1) == targets).sum())
