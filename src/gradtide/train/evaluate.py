"""Loss and accuracy on all devices at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gradtide.parallel import DevicePool, Replica, Shard, find_devices, replicate, split_batch
from gradtide.parallel.step import LossFn, count_correct
from gradtide.train.source import Source, as_source, read_ahead

__all__ = ["Evaluation", "evaluate", "evaluate_replicas"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model does on data that it was not trained on."""

    loss: float  # mean over the samples
    accuracy: float | None  # None where the targets are not classes
    samples: int

    @classmethod
    def of(cls, summed_loss: float, correct: int | None, samples: int) -> "Evaluation":
        if samples == 0:  # a worker may have got none
            return cls(math.nan, None if correct is None else math.nan, 0)
        return cls(summed_loss / samples, None if correct is None else correct / samples, samples)


def evaluate(
    model: nn.Module,
    data: Any,
    devices: int | str | Sequence[str] = 1,
    batch_size: int = 1024,
    loss: LossFn = functional.cross_entropy,
) -> Evaluation:
    """Evaluates a model on tensors, a Dataset or a DataLoader; the model is copied and not changed."""
    found = find_devices(devices)
    with DevicePool(found) as pool:
        return evaluate_replicas(replicate(model, found), as_source(data, batch_size, shuffle=False), loss, pool)


def evaluate_replicas(replicas: Sequence[Replica], source: Source, loss_fn: LossFn, pool: DevicePool) -> Evaluation:
    """Each device takes its shard of every batch. Device 0's buffers (running statistics) are everybody's."""
    _share_buffers(replicas)
    devices = [replica.device for replica in replicas]

    def forward(index: int) -> tuple[float, int | None]:
        module, shard = replicas[index].module, shards[index]
        with torch.no_grad():
            outputs = module(shard.inputs)
            loss = loss_fn(outputs, shard.targets)
        return loss.item() * len(shard.inputs), count_correct(outputs, shard.targets)

    was_training = [replica.module.training for replica in replicas]
    for replica in replicas:
        replica.module.eval()
    total, correct, samples = 0.0, 0, 0
    classes = True
    try:
        shards: list[Shard]
        for shards in read_ahead(split_batch(batch, devices) for batch in source.read(0)):
            for summed, right in pool.run(forward, len(shards)):
                total, correct, classes = total + summed, correct + (right or 0), classes and right is not None
            samples += sum(len(shard.inputs) for shard in shards)
    finally:
        for replica, training in zip(replicas, was_training, strict=True):
            replica.module.train(training)
    return Evaluation.of(total, correct if classes else None, samples)


def _share_buffers(replicas: Sequence[Replica]) -> None:
    with torch.no_grad():
        for replica in replicas[1:]:
            for mine, first in zip(replica.module.buffers(), replicas[0].module.buffers(), strict=True):
                mine.copy_(first)
