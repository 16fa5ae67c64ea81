"""The collectives of hosts as exchanges. Every host sends to every other directly.

Small tensors are one exchange: everybody gets everybody's. Of large ones each host adds up its share and hands it out
while it does: (hosts - 1) / hosts of the bytes leave each host twice, as in a ring, but in two steps instead of
2 * (hosts - 1), and every element is added up in the order of the hosts. A ring would begin each share at another host,
so the bits would depend on where an element lies.
"""

from collections.abc import Sequence

from gradtide.collective.links.parts import NOTHING, Base, Blocks, Layout, Part, Place, Share
from gradtide.even_share import even_share

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]

_ONE_EXCHANGE_BYTES = 64 << 10  # from all to all: above it, halves are handed out
_ALIGN_BYTES = 64


def all_reduce(me: int, hosts: int, size_bytes: int, item_bytes: int, blocks: Blocks) -> Layout:
    """The tensor becomes the reduction of all."""
    whole = Place(Base.TENSOR, 0, size_bytes)
    if size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES:
        part = Part(first=whole, arriving=Place(Base.NONE, 0, size_bytes))
        return Layout(me, (part,) * (hosts - 1), Share(whole, whole, blocks, overwrites=True))
    shares = _shares(hosts, size_bytes, item_bytes)
    mine = shares[me]
    parts = [
        Part(shares[other], mine.size_bytes, Place(Base.NONE, 0, mine.size_bytes), shares[other])
        for other in range(hosts)
        if other != me
    ]
    return Layout(me, parts, Share(mine, mine, blocks))


def reduce_scatter(me: int, rows: Sequence[Place], out: Place, blocks: Blocks) -> Layout:
    """rows: what each host is to have the reduction of, in every host's tensor; ours goes to `out`."""
    arriving = Place(Base.NONE, 0, rows[me].size_bytes)
    parts = [Part(row, 0, arriving) for other, row in enumerate(rows) if other != me]
    return Layout(me, parts, Share(out, rows[me], blocks))


def all_gather(me: int, mine: Place, rows: Sequence[Place]) -> Layout:
    """Everybody's block to everybody; rows: where each host's goes."""
    return Layout(me, [Part(mine, 0, row) for other, row in enumerate(rows) if other != me])


def all_to_all(me: int, leaving: Sequence[Place], arriving: Sequence[Place]) -> Layout:
    """To each host its own block, and a block from each."""
    pairs = zip(leaving, arriving, strict=True)
    return Layout(me, [Part(out, 0, back) for other, (out, back) in enumerate(pairs) if other != me])


def broadcast(me: int, hosts: int, root: int, size_bytes: int) -> Layout:
    """The root's tensor to all. Of a large one it gives each host another share, and they hand those round: it would
    take the root's wire as many times as long as there are other hosts to send it to each."""
    whole = Place(Base.TENSOR, 0, size_bytes)
    others = [other for other in range(hosts) if other != me]
    if hosts == 2 or size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES:
        if me == root:
            return Layout(me, [Part(first=whole)] * len(others))
        return Layout(me, [Part(arriving=whole if other == root else NOTHING) for other in others])
    shares = _shares(hosts, size_bytes, 1)
    mine = shares[me]
    if me == root:
        return Layout(me, [Part(shares[other], mine.size_bytes) for other in others], Share(mine))
    parts = [
        Part(arriving=mine, result=shares[root])
        if other == root
        else Part(second_bytes=mine.size_bytes, result=shares[other])
        for other in others
    ]
    return Layout(me, parts, Share(mine, follows=root))


def _shares(hosts: int, size_bytes: int, item_bytes: int) -> list[Place]:
    grain = max(1, _ALIGN_BYTES // item_bytes)
    ends = [even_share(size_bytes // item_bytes, host, hosts, grain) for host in range(hosts)]
    return [Place(Base.TENSOR, begin * item_bytes, (end - begin) * item_bytes) for begin, end in ends]
