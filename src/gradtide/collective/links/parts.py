"""What goes to and comes from each host in one exchange, as plain data; kernels/exchange.py says how it runs.

A place is where something lies before addresses are known: so far into the tensor that is given, or into the one that
is filled. A layout can be worked out once and used for every tensor of its size.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["NOTHING", "Base", "Blocks", "Layout", "Part", "Place", "Share"]


class Base(enum.IntEnum):
    """What an offset counts from."""

    NONE = 0
    TENSOR = 1
    OUT = 2


@dataclass(frozen=True, slots=True)
class Place:
    """So many bytes, so far into a tensor."""

    base: Base
    offset: int
    size_bytes: int


NOTHING = Place(Base.NONE, 0, 0)


@dataclass(frozen=True, slots=True)
class Blocks:
    """What adds up: addresses of compiled blocks, as kernels/arithmetic.py writes them."""

    combine: int
    last: int
    item_bytes: int
    divisor: int = 1  # of a mean


@dataclass(frozen=True, slots=True)
class Share:
    """This host's own share of the result: what it is made of, and where it goes."""

    mine: Place = NOTHING
    own: Place = NOTHING  # this host's contribution
    blocks: Blocks | None = None  # None: nothing is added up
    follows: int | None = None  # the host that sends it to us
    overwrites: bool = False  # whether it goes where first parts leave from


@dataclass(frozen=True, slots=True)
class Part:
    """What one link carries."""

    first: Place = NOTHING  # leaves at once
    second_bytes: int = 0  # of this host's share, that leave as they get ready
    arriving: Place = NOTHING  # the other's first part; of base NONE: to be added up
    result: Place = NOTHING  # the other's share


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole exchange, as one host sees it. parts has one for each other host, in their order."""

    me: int
    parts: Sequence[Part]
    share: Share = field(default_factory=Share)
