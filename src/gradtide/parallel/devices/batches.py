"""One batch cut into a shard a device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.parallel.devices.pool import Device

__all__ = ["DeviceBatch", "split_batch"]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The part of a batch that one device works on."""

    inputs: Tensor
    targets: Tensor
    weight: float  # its share of the batch's samples: a mean over the shard counts this much in the batch's mean
    of: int | None = None  # the samples of the batch of all workers, where this is of a worker's part
    pieces: int = 1  # that the device computes one after the other, for want of memory

    def cut(self) -> "list[DeviceBatch]":
        """Its pieces, whose weights add up to its own."""
        if self.pieces == 1:
            return [self]
        cut = zip(self.inputs.tensor_split(self.pieces), self.targets.tensor_split(self.pieces), strict=True)
        shares = [(inputs, targets, self.weight * len(inputs) / len(self.inputs)) for inputs, targets in cut]
        return [DeviceBatch(inputs, targets, weight, self.of) for inputs, targets, weight in shares]


def split_batch(
    batch: tuple[Tensor, Tensor],
    devices: Sequence[Device],
    of: int | None = None,
    pieces: int = 1,
    sizes: Sequence[int] | None = None,
) -> list[DeviceBatch]:
    """Cuts (inputs, targets) into at most one shard a device, of sizes one apart at most, and copies each there.

    The shards' weights add up to 1, so the weighted sum of their mean gradients is the gradient of the batch's mean,
    however uneven the cut. A batch with fewer samples than devices leaves the last devices without one. `of`: this is
    a worker's part of a batch of so many samples. `pieces`: each device computes its shard in so many, or in as many as
    the smallest shard has samples: all devices in equally many, since they may meet in each (in batch normalisation).
    `sizes`: a shard of so many samples for each device.
    """
    inputs, targets = batch
    samples = len(inputs)
    if samples == 0 or len(targets) != samples:
        raise ConfigError(
            f"a batch has {samples} inputs and {len(targets)} targets; it needs as many of each, 1 or more"
        )
    if sizes is None:
        shards = min(samples, len(devices))
        pieces = min(pieces, samples // shards)
        cut = zip(torch.tensor_split(inputs, shards), torch.tensor_split(targets, shards), devices, strict=False)
    elif len(sizes) != len(devices) or sum(sizes) != samples or min(sizes) < 1:
        raise ConfigError(
            f"sizes {list(sizes)} for {len(devices)} devices and a batch of {samples}: give one for each, 1 or more, "
            "which add up to the batch"
        )
    else:
        pieces = min(pieces, *sizes)
        cut = zip(torch.split(inputs, list(sizes)), torch.split(targets, list(sizes)), devices, strict=True)
    return [
        DeviceBatch(_on(device, part), _on(device, labels), len(part) / samples, of, pieces)
        for part, labels, device in cut
    ]


def _on(device: Device, tensor: Tensor) -> Tensor:
    return tensor.to(device.torch_device, non_blocking=True)
