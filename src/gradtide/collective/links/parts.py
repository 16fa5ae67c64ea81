"""What goes to and comes from each host in one exchange, as plain data; kernels/exchange.py says how it runs.

A place is where something lies before addresses are known: so far into the tensor that is given, or into the one that
is filled. A layout can be worked out once and used for every tensor of its size.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["NOTHING", "Adding", "Base", "Exchange", "Extent", "HostShare", "LinkPart"]


class Base(enum.IntEnum):
    """What an offset counts from."""

    NONE = 0
    TENSOR = 1
    OUT = 2


@dataclass(frozen=True, slots=True)
class Extent:
    """So many bytes, so far into a tensor."""

    base: Base
    offset: int
    size_bytes: int


NOTHING = Extent(Base.NONE, 0, 0)


@dataclass(frozen=True, slots=True)
class Adding:
    """What adds up: addresses of compiled blocks, as kernels/arithmetic.py writes them."""

    combine: int
    last: int
    item_bytes: int
    divisor: int = 1  # of a mean


@dataclass(frozen=True, slots=True)
class HostShare:
    """This host's own share of the result: what it is made of, and where it goes."""

    mine: Extent = NOTHING
    own: Extent = NOTHING  # this host's contribution
    blocks: Adding | None = None  # None: nothing is added up
    follows: int | None = None  # the host that sends it to us
    overwrites: bool = False  # whether it goes where first parts leave from


@dataclass(frozen=True, slots=True)
class LinkPart:
    """What one link carries."""

    first: Extent = NOTHING  # leaves at once
    second_bytes: int = 0  # of this host's share, that leave as they get ready
    arriving: Extent = NOTHING  # the other's first part; of base NONE: to be added up
    result: Extent = NOTHING  # the other's share


@dataclass(frozen=True, slots=True)
class Exchange:
    """A whole exchange, as one host sees it. parts has one for each other host, in their order."""

    me: int
    parts: Sequence[LinkPart]
    share: HostShare = field(default_factory=HostShare)
