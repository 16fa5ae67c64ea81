"""The collectives of ranks on several hosts as stages: the ranks of a host hand each other what is theirs, some of them
exchange it with other hosts, and they hand out what came.

Every host has as many drivers as the one with the fewest ranks has ranks: its first ones. Driver i has a rail, links to
driver i of each other host, and sends and receives a share of what its host has to; so a host with many ranks has many
flows, and each byte goes over the wire once. Every operation begins with a meeting inside each host and then uses every
rail once, with the same signature: whatever ranks ask for, all hosts learn of a mismatch at the same exchange. Before
that only scratch memory is written, so it leaves the caller's tensors as they were.

Blocks and rows are in the order of the hosts, and inside a host in rank order. Sizes are in bytes.
"""

from collections.abc import Sequence

from gradtide.collective.host.extents import Adding, Base, Extent
from gradtide.collective.host.handing import CopiedRow, Entry, Hand, ShownRow, SummedRow, TakenRow
from gradtide.collective.links import operations
from gradtide.collective.links.operations import shares
from gradtide.collective.links.place import RankPlace, Stages, heard, meet, widest

__all__ = ["all_reduce", "barrier", "broadcast", "hand_out", "reduce"]

_WHOLE_BYTES = 8 << 10  # a tensor up to this goes whole over every rail, which saves the meeting that hands out shares
_MOST_WHOLE_HOSTS = 8


def barrier(place: RankPlace) -> Stages:
    nothing = Extent(Base.TENSOR, 0, 0)
    exchange = operations.all_gather(place.host, nothing, [nothing] * place.hosts)
    return [*meet(place), *([exchange] if place.drives else []), *heard(place)]


def all_reduce(place: RankPlace, size_bytes: int, inside: Adding, between: Adding) -> Stages:
    whole = Extent(Base.TENSOR, 0, size_bytes)
    if _goes_whole(place, size_bytes):
        own = whole if place.here == 1 else Extent(Base.SCRATCH, 0, size_bytes)
        exchange = operations.all_reduce(place.host, place.hosts, own, whole, between)
        adding = Hand(1, size_bytes, [ShownRow(0, whole), SummedRow(0, whole, own)], inside)
        return [exchange] if place.here == 1 else [adding, exchange]
    cut, stages = shares(whole, place.drivers), Stages()
    if place.drives:
        own = _own_share(place, cut)
        stages.append(operations.all_reduce(place.host, place.hosts, own, cut[place.local], between))
    return [*_add_up(place, cut, inside), *stages, *hand_out(place, cut)]


def reduce(place: RankPlace, size_bytes: int, root: tuple[int, int], inside: Adding, between: Adding) -> Stages:
    """root: its host, and which of its ranks. The others keep theirs."""
    cut, (home, local) = shares(Extent(Base.TENSOR, 0, size_bytes), place.drivers), root
    stages, last, is_root = _add_up(place, cut, inside), list[Entry](), (place.host, place.local) == root
    if place.drives:
        own = _own_share(place, cut)
        stages.append(operations.reduce(place.host, place.hosts, home, own, own, between))
        last.append(CopiedRow(own, cut[place.local]) if is_root else ShownRow(0, own))
    if place.host != home or place.here == 1:
        return [*stages, *heard(place)]
    last += [TakenRow(j, 0, 0, share) for j, share in enumerate(cut) if is_root and j != local]
    return [*stages, Hand(1, widest(cut), last)]


def broadcast(place: RankPlace, size_bytes: int, root: tuple[int, int]) -> Stages:
    """root: its host, and which of its ranks."""
    whole, (home, local) = Extent(Base.TENSOR, 0, size_bytes), root
    if _goes_whole(place, size_bytes):
        return _broadcast_whole(place, whole, root)
    cut, stages = shares(whole, place.drivers), Stages()
    if place.host != home or place.here == 1:
        if place.drives:
            stages.append(operations.broadcast(place.host, place.hosts, home, *[cut[place.local]] * 2))
        return [*meet(place), *stages, *hand_out(place, cut)]
    first, last, is_root = list[Entry](), list[Entry](), place.local == local
    if is_root:
        first += [ShownRow(j, share) for j, share in enumerate(cut) if j != local]
    else:
        last += [TakenRow(j, 0, 0, share) for j, share in enumerate(cut) if j != place.local]
    if place.drives:
        own = cut[place.local] if is_root else _own_share(place, cut)
        stages.append(operations.broadcast(place.host, place.hosts, home, own, own))
        first += [] if is_root else [TakenRow(local, place.local, 0, own)]
        last += [ShownRow(0, own)] if is_root else [ShownRow(0, own), CopiedRow(own, cut[place.local])]
    return [Hand(place.drivers, widest(cut), first), *stages, Hand(1, widest(cut), last)]


def _broadcast_whole(place: RankPlace, whole: Extent, root: tuple[int, int]) -> Stages:
    home, local = root
    away, is_root = place.host != home, (place.host, place.local) == root
    own = whole if away or is_root else Extent(Base.SCRATCH, 0, whole.size_bytes)
    exchange = operations.broadcast(place.host, place.hosts, home, own, whole)
    if away or place.here == 1:
        return [*meet(place), exchange]
    return [Hand(1, whole.size_bytes, [ShownRow(0, whole) if is_root else TakenRow(local, 0, 0, own)]), exchange]


def hand_out(place: RankPlace, cut: Sequence[Extent]) -> Stages:
    """Each driver's share of the tensor to the other ranks of its host."""
    if place.here == 1:
        return []
    shown = [ShownRow(0, cut[place.local])] if place.drives else []
    taken = [TakenRow(j, 0, 0, share) for j, share in enumerate(cut) if j != place.local]
    return [Hand(1, widest(cut), [*shown, *taken])]


def _goes_whole(place: RankPlace, size_bytes: int) -> bool:
    small = size_bytes <= _WHOLE_BYTES and place.hosts <= _MOST_WHOLE_HOSTS
    return place.even and (place.here == 1 or small)


def _own_share(place: RankPlace, cut: Sequence[Extent]) -> Extent:
    """Where this driver has its host's contribution."""
    mine = cut[place.local]
    return mine if place.here == 1 else Extent(Base.SCRATCH, 0, mine.size_bytes)


def _add_up(place: RankPlace, cut: Sequence[Extent], inside: Adding) -> Stages:
    """Each driver adds up its share of the tensors of its host, in scratch memory."""
    if place.here == 1:
        return []
    entries: list[Entry] = [ShownRow(j, share) for j, share in enumerate(cut) if j != place.local]
    if place.drives:
        entries.append(SummedRow(place.local, cut[place.local], _own_share(place, cut)))
    return [Hand(len(cut), widest(cut), entries, inside)]
