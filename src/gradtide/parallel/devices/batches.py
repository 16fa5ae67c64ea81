"""One batch cut into a shard a device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.devices.nested import length, moved, split_rows
from gradtide.parallel.devices.pieces import dealt, even_pieces, take_rows
from gradtide.parallel.devices.pool import Device

__all__ = ["DeviceBatch", "split_batch", "split_pieces"]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The part of a batch that one device works on."""

    inputs: Any  # a tensor, or a dict, tuple or list of them
    targets: Any
    weight: float  # its share of the batch's samples: a mean over the shard counts this much in the batch's mean
    of: int | None = None  # the samples of the batch of all workers, where this is of a worker's part
    pieces: int = 1  # that the device computes one after the other, for want of memory
    sizes: tuple[int, ...] = ()  # of these, where they are not simply even

    def cut(self) -> "list[DeviceBatch]":
        """Its pieces, whose weights add up to its own."""
        if self.pieces == 1:
            return [self]
        sizes = self.sizes or even_pieces(self.samples, self.pieces)
        cut = zip(split_rows(self.inputs, sizes), split_rows(self.targets, sizes), sizes, strict=True)
        return [DeviceBatch(i, t, self.weight * size / self.samples, self.of) for i, t, size in cut]

    @property
    def samples(self) -> int:
        return length(self.inputs)

    @property
    def device(self) -> torch.device:
        found: Tensor = next(leaf for leaf in pytree.tree_leaves(self.inputs) if isinstance(leaf, Tensor))
        return found.device


def split_batch(
    batch: tuple[Any, Any],
    devices: Sequence[Device],
    of: int | None = None,
    pieces: int = 1,
    sizes: Sequence[int] | None = None,
) -> list[DeviceBatch]:
    """Cuts (inputs, targets) into at most one shard for each device, and copies each there. Sizes differ by at most
    one.

    The shards' weights add up to 1, so the weighted sum of their mean gradients is the gradient of the batch's mean,
    however uneven the cut. A batch with fewer samples than devices leaves the last devices without one. `of`: the
    number of samples of the batch that this is a worker's part of. `pieces`: each device computes its shard in this
    many pieces, or in as many as the smallest shard has samples; all devices have equally many, since they may meet in
    each (in batch normalisation). `sizes`: the number of samples of each device's shard.
    """
    inputs, targets = batch
    samples, labels = length(inputs), length(targets)
    if samples == 0 or labels != samples:
        raise ConfigError(f"a batch has {samples} inputs and {labels} targets; it needs as many of each, 1 or more")
    if sizes is None:
        sizes = even_pieces(samples, min(samples, len(devices)))
    elif len(sizes) != len(devices) or sum(sizes) != samples or min(sizes) < 1:
        raise ConfigError(
            f"sizes {list(sizes)} for {len(devices)} devices and a batch of {samples}: give one for each, 1 or more, "
            "which add up to the batch"
        )
    pieces = min(pieces, *sizes)
    cut = zip(split_rows(inputs, sizes), split_rows(targets, sizes), sizes, devices, strict=False)
    return [
        DeviceBatch(moved(part, device.torch_device), moved(labels, device.torch_device), size / samples, of, pieces)
        for part, labels, size, device in cut
    ]


def split_pieces(
    batch: tuple[Any, Any], devices: Sequence[Device], pieces: Sequence[int], of: int | None = None
) -> list[DeviceBatch]:
    """As `split_batch`, but each piece of so many samples is cut over all devices, which meet in it."""
    counts, rows = dealt(pieces, len(devices))
    whole = split_batch(take_rows(batch, rows), devices, of, sizes=[sum(own) for own in counts])
    return [replace(part, pieces=len(own), sizes=tuple(own)) for part, own in zip(whole, counts, strict=True)]
