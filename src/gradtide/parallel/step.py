"""One step of training on several devices: forward and backward side by side, synchronise, update."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.collective import all_reduce, check_strategy
from gradtide.events import Emit, GradientsReady, GradientsSynchronised, ParametersUpdated, ignore
from gradtide.parallel.batches import Shard
from gradtide.parallel.devices import DevicePool
from gradtide.parallel.randomness import DeviceRandom
from gradtide.parallel.replicas import Replica

__all__ = ["BatchResult", "LossFn", "check_strategy", "count_correct", "train_batch"]

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

    def forward_and_backward(index: int) -> tuple[float, int | None, list[bool]]:
        replica = replicas[index]
        if index >= len(shards):
            replica.gradients.clear()
            return 0.0, 0, [False] * len(replica.gradients.parameters)
        shard = shards[index]
        with (randomness and randomness[index]) or nullcontext():
            outputs = replica.module(shard.inputs)
        loss = loss_fn(outputs, shard.targets) * shard.weight
        loss.backward()
        return loss.item(), count_correct(outputs, shard.targets), replica.gradients.collect()

    def update(index: int) -> None:
        replicas[index].gradients.hand_out(used)
        optimizers[index].step()
        optimizers[index].zero_grad(set_to_none=True)

    seen = pool.run(forward_and_backward, len(shards)) + [
        forward_and_backward(index) for index in range(len(shards), len(replicas))
    ]
    emit(GradientsReady())
    used = [any(of_device) for of_device in zip(*(s[2] for s in seen), strict=True)]
    emit(GradientsSynchronised(_synchronise(replicas, strategy, pool)))
    pool.run(update)
    emit(ParametersUpdated())
    corrects = [s[1] for s in seen]
    correct = None if None in corrects else sum(c for c in corrects if c is not None)
    return BatchResult(sum(s[0] for s in seen), correct, sum(len(shard.inputs) for shard in shards))


def _synchronise(replicas: Sequence[Replica], strategy: str, pool: DevicePool) -> int:
    buffers = zip(*(replica.gradients.buffers for replica in replicas), strict=True)
    return sum(all_reduce(of_devices, strategy, each=pool.run) for of_devices in buffers)


def count_correct(outputs: Tensor, targets: Tensor) -> int | None:
    """How many samples are in the right class, or None where outputs are not scores of classes."""
    if targets.is_floating_point() or targets.dim() != 1 or outputs.dim() != 2:
        return None
    return int((outputs.argmax(1) == targets).sum())
