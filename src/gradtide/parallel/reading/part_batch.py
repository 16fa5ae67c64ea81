"""A batch of which a worker has read its part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradtide.parallel.batch_parts import cut, digest

__all__ = ["PartBatch", "digest_batch"]


@dataclass(slots=True)
class PartBatch:
    """The samples from `begin` to `end` of a batch, and how others of it are read when it is to be cut otherwise: as
    workers came or went, or because their shares have changed since it was read ahead."""

    indices: Sequence[Any]  # of the whole batch
    begin: int
    end: int
    data: Any
    read_again: Callable[["PartBatch", int, int], None]  # so that it has these, and maybe more

    def take(self, begin: int, end: int) -> Any:
        if begin < self.begin or end > self.end:
            self.read_again(self, begin, end)
        if (begin, end) == (self.begin, self.end):
            return self.data
        return cut(self.data, begin - self.begin, end - self.begin)


def digest_batch(batch: Any) -> bytes:
    """The same for two batches of the same samples."""
    return digest([list(batch.indices)] if isinstance(batch, PartBatch) else batch)
