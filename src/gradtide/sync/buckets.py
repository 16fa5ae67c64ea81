"""Buckets of gradients that leave while backward goes on.

Backward gives gradients roughly from the last layer to the first, so buckets are filled in that order. They also leave
in that order on every rank, whatever order they fill in: ranks must ask for the same thing at the same time.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Bucket", "BucketMemory", "Buckets", "cut_into_buckets"]

# The first is small, so that something leaves early; later ones are large enough that bandwidth and not latency counts.
FIRST_BYTES, BUCKET_BYTES = 1 << 20, 8 << 20


def cut_into_buckets(parameters: Sequence[nn.Parameter]) -> list[list[int]]:
    """Which parameters are in which bucket: from the last to the first, of one dtype each."""
    buckets: list[list[int]] = []
    room, dtype = 0, None
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        if room <= 0 or parameter.dtype != dtype:
            room, dtype = BUCKET_BYTES if buckets else FIRST_BYTES, parameter.dtype
            buckets.append([])
        buckets[-1].append(index)
        room -= parameter.numel() * parameter.element_size()
    return buckets


class Bucket:
    """Some parameters whose gradients travel together."""

    def __init__(self, number: int, indices: Sequence[int]) -> None:
        self.number, self.indices, self.missing = number, indices, set(indices)


class Buckets:
    """All buckets of a model, and which gradients each still waits for in this step."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, overlap: bool) -> None:
        self.overlap, self._left = overlap, 0
        self.all = [Bucket(number, indices) for number, indices in enumerate(cut_into_buckets(parameters))]
        self._bucket_of = {index: bucket for bucket in self.all for index in bucket.indices}

    def restart(self) -> None:
        """For the next step."""
        self._left = 0
        for bucket in self.all:
            bucket.missing = set(bucket.indices)

    def put(self, index: int) -> list[Bucket] | None:
        """A parameter got a gradient. Returns the buckets that leave with it, in order; None if its own has left
        already, without what was added to it now."""
        bucket = self._bucket_of[index]
        if bucket.number < self._left:
            return None
        bucket.missing.discard(index)
        return self._leaving() if self.overlap else []

    def of(self, index: int) -> Bucket:
        """The bucket of a parameter."""
        return self._bucket_of[index]

    @property
    def left(self) -> int:
        """How many have left in this step."""
        return self._left

    def missing(self) -> list[int]:
        """The parameters that have had no gradient in this step, in the order of their buckets."""
        return [index for bucket in self.all for index in sorted(bucket.missing)]

    def rest(self) -> list[Bucket]:
        """All that have not left yet, which leave now, whether they are full or not."""
        left, self._left = self._left, len(self.all)
        return self.all[left:]

    def _leaving(self) -> list[Bucket]:
        begin = self._left
        while self._left < len(self.all) and not self.all[self._left].missing:
            self._left += 1
        return self.all[begin : self._left]


class BucketMemory:
    """Where the gradients of each bucket are gathered, side by side."""

    def __init__(
        self, buckets: Sequence[Bucket], parameters: Sequence[nn.Parameter], make: Callable[[int, torch.dtype], Tensor]
    ) -> None:
        self._parameters = parameters
        self.flat: list[Tensor] = []  # a bucket each
        self.views: dict[int, Tensor] = {}  # a parameter each, in its shape
        for bucket in buckets:
            counts = [parameters[index].numel() for index in bucket.indices]
            self.flat.append(make(sum(counts), parameters[bucket.indices[0]].dtype))
            for index, piece in zip(bucket.indices, self.flat[-1].split(counts), strict=True):
                self.views[index] = piece.view(parameters[index].shape)

    def gather(self, index: int, weight: float) -> None:
        """A gradient goes to its place, as much as it counts; nought where there is none, or a sparse one."""
        gradient = self._parameters[index].grad
        if gradient is None or gradient.is_sparse:
            self.views[index].zero_()
        else:
            torch.mul(gradient, weight, out=self.views[index])
