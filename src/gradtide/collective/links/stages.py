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

from gradtide.collective.host.extents import NOTHING, Adding, Base, Extent
from gradtide.collective.host.handing import CopiedRow, Entry, Hand, ShownRow, SummedRow, TakenRow
from gradtide.collective.links import operations
from gradtide.collective.links.operations import shares
from gradtide.collective.links.place import RankPlace, Stages, chunks, heard, meet, pipelined, widest

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
    parts = []
    for number, ends in enumerate(found := chunks(place, size_bytes)):
        turn = number % 2 * found[0][1]
        cut, driven = shares(whole.part(*ends), place.drivers), None
        if place.drives:
            own = _own_share(place, cut, turn)
            driven = operations.all_reduce(place.host, place.hosts, own, cut[place.local], between)
        parts.append((_add_up(place, cut, turn, inside), driven, hand_out(place, cut)))
    return pipelined(parts)


def reduce(place: RankPlace, size_bytes: int, root: tuple[int, int], inside: Adding, between: Adding) -> Stages:
    """root: its host, and which of its ranks. The others keep theirs."""
    whole, (home, local) = Extent(Base.TENSOR, 0, size_bytes), root
    parts, is_root = [], (place.host, place.local) == root
    for number, ends in enumerate(found := chunks(place, size_bytes)):
        turn = number % 2 * found[0][1]
        cut, exchange, last = shares(whole.part(*ends), place.drivers), None, list[Entry]()
        if place.drives:
            own = _own_share(place, cut, turn)
            exchange = operations.reduce(place.host, place.hosts, home, own, own, between)
            last.append(CopiedRow(own, cut[place.local]) if is_root else ShownRow(0, own))
        last += [TakenRow(j, 0, 0, share) for j, share in enumerate(cut) if is_root and j != local]
        keeps = place.host == home and place.here > 1
        after: Stages = [Hand(1, widest(cut), last)] if keeps else heard(place)
        parts.append((_add_up(place, cut, turn, inside), exchange, after))
    return pipelined(parts)


def broadcast(place: RankPlace, size_bytes: int, root: tuple[int, int]) -> Stages:
    """root: its host, and which of its ranks."""
    whole = Extent(Base.TENSOR, 0, size_bytes)
    if _goes_whole(place, size_bytes):
        return _broadcast_whole(place, whole, root)
    is_home = place.host == root[0] and place.here > 1
    parts = []
    for number, ends in enumerate(found := chunks(place, size_bytes)):
        turn = number % 2 * found[0][1]
        cut, exchange, own = shares(whole.part(*ends), place.drivers), None, NOTHING
        if place.drives:
            from_scratch = is_home and place.local != root[1]
            own = _own_share(place, cut, turn) if from_scratch else cut[place.local]
            exchange = operations.broadcast(place.host, place.hosts, root[0], own, own)
        before, after = meet(place) if number == 0 else [], hand_out(place, cut)
        if is_home:
            before, after = _broadcast_at_home(place, cut, root[1], own)
        parts.append((before, exchange, after))
    return pipelined(parts)


def _broadcast_at_home(place: RankPlace, cut: Sequence[Extent], root: int, own: Extent) -> tuple[Stages, Stages]:
    """The root's host: each driver gets its share, in scratch memory, and after the exchange everybody gets all."""
    if place.local == root:
        first: list[Entry] = [ShownRow(j, share) for j, share in enumerate(cut) if j != root]
        last: list[Entry] = [ShownRow(0, own)] if place.drives else []
    else:
        first = [TakenRow(root, place.local, 0, own)] if place.drives else []
        last = [ShownRow(0, own), CopiedRow(own, cut[place.local])] if place.drives else []
        last += [TakenRow(j, 0, 0, share) for j, share in enumerate(cut) if j != place.local]
    return [Hand(place.drivers, widest(cut), first)], [Hand(1, widest(cut), last)]


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


def _own_share(place: RankPlace, cut: Sequence[Extent], turn: int) -> Extent:
    """Where this driver has its host's contribution to a chunk: so far into scratch memory. That to the chunk before is
    elsewhere in it, and may still be on its way."""
    mine = cut[place.local]
    return mine if place.here == 1 else Extent(Base.SCRATCH, turn, mine.size_bytes)


def _add_up(place: RankPlace, cut: Sequence[Extent], turn: int, inside: Adding) -> Stages:
    """Each driver adds up its share of the tensors of its host, in scratch memory."""
    if place.here == 1:
        return []
    entries: list[Entry] = [ShownRow(j, share) for j, share in enumerate(cut) if j != place.local]
    if place.drives:
        entries.append(SummedRow(place.local, cut[place.local], _own_share(place, cut, turn)))
    return [Hand(len(cut), widest(cut), entries, inside)]
