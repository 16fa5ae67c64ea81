"""Where a rank is among hosts, and what the stages of operations between hosts have in common; see stages.py."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from gradtide.collective.host.extents import Base, Extent
from gradtide.collective.host.handing import Hand
from gradtide.collective.links.parts import Awaited, Exchange

__all__ = ["RankPlace", "Stages", "chunks", "heard", "meet", "pipelined", "row_of", "widest"]

Stages = list[Hand | Exchange | Awaited]
_ALIGN_BYTES = 64
_MOST_CHUNKS = 16  # each costs the ranks of a host two meetings more
_CHUNK_BYTES = 2 << 20  # while one is on the wire, the ranks of a host add up the next and hand out the last


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank is: on which host, which of its ranks, and how many ranks each host has."""

    host: int
    local: int
    counts: tuple[int, ...]

    @property
    def hosts(self) -> int:
        return len(self.counts)

    @property
    def here(self) -> int:
        """Ranks of this host."""
        return self.counts[self.host]

    @property
    def drivers(self) -> int:
        """Ranks of each host that have links to other hosts' ranks of the same number: its first ones."""
        return min(self.counts)

    @property
    def drives(self) -> bool:
        return self.local < self.drivers

    @property
    def even(self) -> bool:
        """Whether every rank drives."""
        return self.drivers == max(self.counts)

    def blocks(self, base: Base, row_bytes: int) -> list[Extent]:
        """Each host's rows."""
        ends = [row_bytes * end for end in accumulate(self.counts, initial=0)]
        return [Extent(base, begin, row_bytes * count) for begin, count in zip(ends, self.counts, strict=False)]

    def others_here(self) -> list[int]:
        return [local for local in range(self.here) if local != self.local]


def meet(place: RankPlace) -> Stages:
    """The ranks of a host, to see that they ask for the same."""
    return [] if place.here == 1 else [Hand()]


def heard(place: RankPlace) -> Stages:
    """At the end, where nothing is handed out: who does not drive hears that hosts agree."""
    return [] if place.here == place.drivers else [Hand()]


def row_of(block: Extent, number: int, row_bytes: int) -> Extent:
    return block.part(number * row_bytes, (number + 1) * row_bytes)


def widest(extents: Iterable[Extent]) -> int:
    return max((extent.size_bytes for extent in extents), default=0)


def chunks(place: RankPlace, size_bytes: int, at_once: int = 1) -> list[tuple[int, int]]:
    """Where the chunks of a tensor, or of each of so many rows, begin and end. It is one where all ranks are alone on
    their hosts: nothing is to be done meanwhile."""
    if max(place.counts) == 1 or size_bytes == 0:
        return [(0, size_bytes)]
    step = max(_CHUNK_BYTES // at_once, size_bytes // _MOST_CHUNKS, 1)
    step = -(-step // _ALIGN_BYTES) * _ALIGN_BYTES
    return [(begin, min(size_bytes, begin + step)) for begin in range(0, size_bytes, step)]


def pipelined(parts: Sequence[tuple[Stages, Exchange | None, Stages]]) -> Stages:
    """Chunks one after the other, each with what is before its exchange and what is after it. An exchange is under way
    while the next chunk is prepared and the last one is handed out."""
    if len(parts) == 1:
        before, exchange, after = parts[0]
        return [*before, *([exchange] if exchange else []), *after]
    stages, handed = Stages(), Stages()
    for number, (before, exchange, after) in enumerate(parts):
        stages += before
        if exchange is not None:
            stages += [Awaited()] if number else []
            stages.append(replace(exchange, overlaps=True))
        stages += handed
        handed = after
    return [*stages, *([Awaited()] if parts[-1][1] else []), *handed]
