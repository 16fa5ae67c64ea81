"""Places before their addresses are known: so far into the tensor that is given, into the one that is filled, or into
scratch memory. What is laid out by them can be worked out once and used for every tensor of its size."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["NOTHING", "Adding", "Base", "Extent", "in_turn"]


class Base(enum.IntEnum):
    """What an offset counts from."""

    NONE = 0
    TENSOR = 1
    OUT = 2
    SCRATCH = 3


@dataclass(frozen=True, slots=True)
class Extent:
    """So many bytes, so far into a tensor."""

    base: Base
    offset: int
    size_bytes: int

    def part(self, begin: int, end: int) -> "Extent":
        """Its bytes from begin to end."""
        return Extent(self.base, self.offset + begin, end - begin)


def in_turn(base: Base, sizes: Sequence[int]) -> list[Extent]:
    """So many bytes each, one after the other."""
    return [Extent(base, begin, size) for begin, size in zip(accumulate(sizes, initial=0), sizes, strict=False)]


NOTHING = Extent(Base.NONE, 0, 0)


@dataclass(frozen=True, slots=True)
class Adding:
    """What adds up: addresses of compiled blocks, as kernels/arithmetic.py writes them."""

    combine: int
    last: int
    item_bytes: int
    divisor: int = 1  # of a mean
