"""The collectives of hosts as exchanges. Every host sends to every other directly.

Small tensors are one exchange: everybody gets everybody's. Of large ones each host adds up its share and hands it out
while it does: (hosts - 1) / hosts of the bytes leave each host twice, as in a ring, but in two steps instead of
2 * (hosts - 1), and every element is added up in the order of the hosts. A ring would begin each share at another host,
so the bits would depend on where an element lies.
"""

from collections.abc import Sequence

from gradtide.collective.links.parts import NOTHING, Adding, Base, Exchange, Extent, HostShare, LinkPart
from gradtide.even_share import even_share

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]

_ONE_EXCHANGE_BYTES = 64 << 10  # from all to all: above it, halves are handed out
_ALIGN_BYTES = 64


def all_reduce(me: int, hosts: int, size_bytes: int, item_bytes: int, blocks: Adding) -> Exchange:
    """The tensor becomes the reduction of all."""
    whole = Extent(Base.TENSOR, 0, size_bytes)
    if size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES:
        part = LinkPart(first=whole, arriving=Extent(Base.NONE, 0, size_bytes))
        return Exchange(me, (part,) * (hosts - 1), HostShare(whole, whole, blocks, overwrites=True))
    shares = _shares(hosts, size_bytes, item_bytes)
    mine = shares[me]
    parts = [
        LinkPart(shares[other], mine.size_bytes, Extent(Base.NONE, 0, mine.size_bytes), shares[other])
        for other in range(hosts)
        if other != me
    ]
    return Exchange(me, parts, HostShare(mine, mine, blocks))


def reduce_scatter(me: int, rows: Sequence[Extent], out: Extent, blocks: Adding) -> Exchange:
    """rows: what each host is to have the reduction of, in every host's tensor; ours goes to `out`."""
    arriving = Extent(Base.NONE, 0, rows[me].size_bytes)
    parts = [LinkPart(row, 0, arriving) for other, row in enumerate(rows) if other != me]
    return Exchange(me, parts, HostShare(out, rows[me], blocks))


def all_gather(me: int, mine: Extent, rows: Sequence[Extent]) -> Exchange:
    """Everybody's block to everybody; rows: where each host's goes."""
    return Exchange(me, [LinkPart(mine, 0, row) for other, row in enumerate(rows) if other != me])


def all_to_all(me: int, leaving: Sequence[Extent], arriving: Sequence[Extent]) -> Exchange:
    """To each host its own block, and a block from each."""
    pairs = zip(leaving, arriving, strict=True)
    return Exchange(me, [LinkPart(out, 0, back) for other, (out, back) in enumerate(pairs) if other != me])


def broadcast(me: int, hosts: int, root: int, size_bytes: int) -> Exchange:
    """The root's tensor to all. Of a large one it gives each host another share, and they hand those round: it would
    take the root's wire as many times as long as there are other hosts to send it to each."""
    whole = Extent(Base.TENSOR, 0, size_bytes)
    others = [other for other in range(hosts) if other != me]
    if hosts == 2 or size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES:
        if me == root:
            return Exchange(me, [LinkPart(first=whole)] * len(others))
        return Exchange(me, [LinkPart(arriving=whole if other == root else NOTHING) for other in others])
    shares = _shares(hosts, size_bytes, 1)
    mine = shares[me]
    if me == root:
        return Exchange(me, [LinkPart(shares[other], mine.size_bytes) for other in others], HostShare(mine))
    parts = [
        LinkPart(arriving=mine, result=shares[root])
        if other == root
        else LinkPart(second_bytes=mine.size_bytes, result=shares[other])
        for other in others
    ]
    return Exchange(me, parts, HostShare(mine, follows=root))


def _shares(hosts: int, size_bytes: int, item_bytes: int) -> list[Extent]:
    grain = max(1, _ALIGN_BYTES // item_bytes)
    ends = [even_share(size_bytes // item_bytes, host, hosts, grain) for host in range(hosts)]
    return [Extent(Base.TENSOR, begin * item_bytes, (end - begin) * item_bytes) for begin, end in ends]
