"""What goes to and comes from each host in one exchange, as plain data; kernels/exchange.py says how it runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradtide.collective.host.extents import NOTHING, Adding, Extent

__all__ = ["Awaited", "Exchange", "HostShare", "LinkPart"]


@dataclass(frozen=True, slots=True)
class HostShare:
    """This host's own share of the result: what it is made of, and where it goes."""

    mine: Extent = NOTHING
    own: Extent = NOTHING  # this host's contribution
    blocks: Adding | None = None  # None: nothing is added up
    follows: int | None = None  # the host that sends it to us
    overwrites: bool = False  # whether it goes where first parts leave from
    copies: bool = False  # whether it is our contribution as it is


@dataclass(frozen=True, slots=True)
class LinkPart:
    """What one link carries."""

    first: Extent = NOTHING  # leaves at once
    second_bytes: int = 0  # of this host's share, that leave as they get ready
    arriving: Extent = NOTHING  # the other's first part; of base NONE: to be added up
    result: Extent = NOTHING  # the other's share


@dataclass(frozen=True, slots=True)
class Exchange:
    """A whole exchange, as one host sees it. parts has one for each other host, in their order.

    mesh: it is not between the ranks of one rail but between all ranks of different hosts, in rank order.
    overlaps: the stages that follow run while it is under way, up to the one that awaits it.
    """

    me: int
    parts: Sequence[LinkPart]
    share: HostShare = field(default_factory=HostShare)
    mesh: bool = False
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """The stage that ends when the exchange that is under way has."""
