"""The collectives of hosts as exchanges. Every host sends to every other directly.

Small tensors are one exchange: everybody gets everybody's. Of large ones each host adds up its share and hands it out
while it does: (hosts - 1) / hosts of the bytes leave each host twice, as in a ring, but in two steps instead of
2 * (hosts - 1), and every element is added up in the order of the hosts. A ring would begin each share at another host,
so the bits would depend on where an element lies.

`own` is where this host's contribution lies and `to` where the result goes: as many bytes, and maybe the same place.
"""

from collections.abc import Sequence
from dataclasses import replace

from gradtide.collective.host.extents import NOTHING, Adding, Base, Extent
from gradtide.collective.links.parts import Exchange, HostShare, LinkPart
from gradtide.even_share import even_share

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce", "reduce_scatter", "shares", "stripes"]

_ONE_EXCHANGE_BYTES = 64 << 10  # from all to all: above it, halves are handed out
_ALIGN_BYTES = 64
_GRAIN_BYTES = 16 << 10  # less is not worth another flow


def all_reduce(me: int, hosts: int, own: Extent, to: Extent, blocks: Adding) -> Exchange:
    if own.size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES:
        part = LinkPart(first=own, arriving=_added(own))
        return Exchange(me, (part,) * (hosts - 1), HostShare(to, own, blocks, overwrites=own == to))
    leaving, results = shares(own, hosts), shares(to, hosts)
    parts = [
        LinkPart(leaving[other], leaving[me].size_bytes, _added(leaving[me]), results[other])
        for other in range(hosts)
        if other != me
    ]
    return Exchange(me, parts, HostShare(results[me], leaving[me], blocks))


def reduce(me: int, hosts: int, root: int, own: Extent, to: Extent, blocks: Adding) -> Exchange:
    """The reduction of all goes to one host."""
    if me == root:
        return Exchange(me, [LinkPart(arriving=_added(own))] * (hosts - 1), HostShare(to, own, blocks))
    return Exchange(me, [LinkPart(own if other == root else NOTHING) for other in range(hosts) if other != me])


def reduce_scatter(me: int, rows: Sequence[Extent], to: Extent, blocks: Adding) -> Exchange:
    """rows: our contribution to what each host is to have."""
    parts = [LinkPart(row, 0, _added(rows[me])) for other, row in enumerate(rows) if other != me]
    return Exchange(me, parts, HostShare(to, rows[me], blocks))


def all_gather(me: int, own: Extent, rows: Sequence[Extent]) -> Exchange:
    """Everybody's block to everybody; rows: where each host's goes."""
    return Exchange(me, [LinkPart(own, 0, row) for other, row in enumerate(rows) if other != me], _kept(own, rows[me]))


def all_to_all(me: int, leaving: Sequence[Extent], arriving: Sequence[Extent]) -> Exchange:
    """To each host its own block, and a block from each. A block of nothing neither leaves nor arrives."""
    pairs = zip(leaving, arriving, strict=True)
    parts = [LinkPart(there, 0, back) for other, (there, back) in enumerate(pairs) if other != me]
    return Exchange(me, parts, _kept(leaving[me], arriving[me]))


def broadcast(me: int, hosts: int, root: int, own: Extent, to: Extent) -> Exchange:
    """The root's to all. Of a large one it gives each host another share, and they hand those round: it would take the
    root's wire as many times as long as there are other hosts to send it to each."""
    others = [other for other in range(hosts) if other != me]
    kept = _kept(own, to) if me == root else HostShare()
    if hosts == 2 or to.size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES:
        if me == root:
            return Exchange(me, [LinkPart(first=own)] * len(others), kept)
        return Exchange(me, [LinkPart(arriving=to if other == root else NOTHING) for other in others])
    leaving, results = shares(own, hosts), shares(to, hosts)
    mine = results[me]
    if me == root:
        return Exchange(me, [LinkPart(leaving[other], mine.size_bytes) for other in others], HostShare(leaving[me]))
    parts = [
        LinkPart(arriving=mine, result=results[root])
        if other == root
        else LinkPart(second_bytes=mine.size_bytes, result=results[other])
        for other in others
    ]
    return Exchange(me, parts, HostShare(mine, follows=root))


def shares(whole: Extent, count: int) -> list[Extent]:
    """Even parts, on cache lines; so no element is cut."""
    ends = [even_share(whole.size_bytes, number, count, _ALIGN_BYTES) for number in range(count)]
    return [whole.part(*end) for end in ends]


def stripes(whole: Exchange, flows: int) -> list[Exchange]:
    """The same as an exchange for each flow, of a stripe of everything. Both ends of a link cut by size, and so alike.
    What is small, and the rest in any case, goes over the first flow; empty stripes are left out."""
    if flows == 1:
        return [whole]
    cut = [_stripe(whole, number, flows) for number in reversed(range(flows))]
    return [cut[0], *(stripe for stripe in cut[1:] if _moves(stripe))]


def _stripe(whole: Exchange, number: int, flows: int) -> Exchange:
    def of(extent: Extent) -> Extent:
        begin, end = even_share(extent.size_bytes, number, flows, _GRAIN_BYTES)
        return Extent(Base.NONE, 0, end - begin) if extent.base == Base.NONE else extent.part(begin, end)

    share = replace(whole.share, mine=of(whole.share.mine), own=of(whole.share.own))
    parts = [
        LinkPart(of(part.first), share.mine.size_bytes if part.second_bytes else 0, of(part.arriving), of(part.result))
        for part in whole.parts
    ]
    return replace(whole, parts=parts, share=share)


def _moves(stripe: Exchange) -> bool:
    moved = [
        stripe.share.mine,
        *(extent for part in stripe.parts for extent in (part.first, part.arriving, part.result)),
    ]
    return any(extent.size_bytes for extent in moved)


def _added(own: Extent) -> Extent:
    return Extent(Base.NONE, 0, own.size_bytes)


def _kept(own: Extent, to: Extent) -> HostShare:
    """What stays here."""
    return HostShare() if own == to else HostShare(to, own, copies=True)
