"""Gradients gathered in buckets that leave while backward goes on.

Backward gives gradients roughly from the last layer to the first, so buckets are filled in that order. They also leave
in that order on every rank, whatever order they fill in: ranks must ask for the same thing at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError

__all__ = ["Bucket", "Buckets", "cut_into_buckets"]

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


@dataclass(slots=True)
class Bucket:
    """Some parameters whose gradients travel together."""

    indices: Sequence[int]
    memory: Tensor
    views: Sequence[Tensor]  # of the memory, in the parameters' shapes
    missing: set[int] = field(default_factory=set)


class Buckets:
    """All buckets of a model. `leave` is called for each full one, in order."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        memory: Callable[[int, torch.dtype], Tensor],
        leave: Callable[[Bucket], None],
        *,
        overlap: bool,
    ) -> None:
        self._parameters, self._names, self._leave, self._overlap = parameters, names, leave, overlap
        self.all: list[Bucket] = []
        self._bucket_of: dict[int, tuple[Bucket, int]] = {}
        for indices in cut_into_buckets(parameters):
            counts = [parameters[index].numel() for index in indices]
            flat = memory(sum(counts), parameters[indices[0]].dtype)
            pieces = flat.split(counts)
            views = [piece.view(parameters[i].shape) for i, piece in zip(indices, pieces, strict=True)]
            bucket = Bucket(indices, flat, views)
            self._bucket_of |= {index: (bucket, place) for place, index in enumerate(indices)}
            self.all.append(bucket)
        self.restart()

    def restart(self) -> None:
        """For the next step."""
        self._left = 0
        for bucket in self.all:
            bucket.missing = set(bucket.indices)

    def put(self, index: int, weight: float) -> None:
        """The gradient of a parameter is whole: into its bucket, as much as it counts."""
        bucket, place = self._bucket_of[index]
        if index not in bucket.missing:
            raise ConfigError(
                f"{self._names[index]} got a gradient twice before step(); put all but the last backward in no_sync()"
            )
        gradient = self._parameters[index].grad
        if gradient is None:
            bucket.views[place].zero_()
        else:
            torch.mul(gradient, weight, out=bucket.views[place])
        bucket.missing.discard(index)
        if self._overlap:
            self._let_go()

    def put_the_rest(self, weight: float) -> None:
        for bucket in self.all:
            for index in sorted(bucket.missing):
                self.put(index, weight)
        self._let_go()

    def _let_go(self) -> None:
        while self._left < len(self.all) and not self.all[self._left].missing:
            bucket = self.all[self._left]
            self._left += 1
            self._leave(bucket)
