"""Finds rings: orders of the devices in which each reaches the next, as wide as the links allow.

A ring's width is the bandwidth that every one of its hops has left at the same time. Searching for the widest ring,
taking its bandwidth away and searching again gives rings that never compete. On a DGX-1 that finds the textbook's
double ring and single ring, each in both directions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradtide.schedule.build.wiring import Wiring

__all__ = ["Ring", "find_rings", "integer_weights", "ring_width", "widest_ring"]

SEARCH_STEPS = 4000  # of one backtracking search: about 10 ms; 16 devices on a DGX-2 need 16
ATTEMPTS = 6  # decompositions tried, each with another neighbour preferred
EXACT = 1_000_000  # weights beyond that are rounded


class Ring(NamedTuple):
    """An order of ranks and the bytes/s that each of its hops gets."""

    order: tuple[int, ...]
    bytes_per_s: float


def widest_ring(wiring: Wiring, left: Sequence[float] | None = None, shift: int = 0) -> Ring | None:
    """The ring whose narrowest hop is widest, with only so much of each resource left; None if there is no ring."""
    count, left = len(wiring.paths), wiring.capacity if left is None else left
    widths = {
        left[number] / times
        for paths in wiring.paths
        for path in paths
        if path is not None
        for number, many in Counter(path.resources).items()
        for times in {many, 2 * many, 3 * many, count}
        if left[number] > 0
    }
    for width in _from_wide_to_narrow(widths, wiring, left):
        order = _search(wiring, left, width * (1 - 1e-9), shift) if _joined(wiring, left, width) else None
        if order is not None:
            return Ring(order, ring_width(wiring, order, left))
    return None


def ring_width(wiring: Wiring, order: Sequence[int], left: Sequence[float] | None = None) -> float:
    """The bytes/s that every hop of this ring gets when all of them move at once."""
    left = wiring.capacity if left is None else left
    return min(left[number] / times for number, times in _uses(wiring, order).items())


def find_rings(wiring: Wiring, both_ways: bool) -> list[Ring]:
    """Rings that share no bandwidth, together as wide as we can make them. One way, a ring takes its way back too."""
    best: list[Ring] = []
    ceiling = _port_width(wiring) / (1 if both_ways else 2)
    for shift in range(ATTEMPTS):
        rings = _decompose(wiring, both_ways, shift)
        better = _total(rings) > _total(best) * (1 + 1e-9)
        best = rings if better else best
        if not best or _total(best) >= ceiling * (1 - 1e-9) or (shift and not better):
            break
    return best


def _total(rings: Sequence[Ring]) -> float:
    return sum(ring.bytes_per_s for ring in rings)


def integer_weights(rings: Sequence[Ring]) -> list[int]:
    """Whole numbers in the proportion of the rings' widths: exact where bytes/s have a small common measure."""
    narrowest = min(ring.bytes_per_s for ring in rings)
    for scale in range(1, 64):
        scaled = [ring.bytes_per_s / narrowest * scale for ring in rings]
        if all(abs(value - round(value)) < 1e-9 * value for value in scaled):
            return [round(value) for value in scaled]
    return [max(1, round(EXACT * ring.bytes_per_s / _total(rings))) for ring in rings]


def _decompose(wiring: Wiring, both_ways: bool, shift: int) -> list[Ring]:
    left = list(wiring.capacity)
    rings: list[Ring] = []
    while len(rings) < 2 * len(wiring.paths):
        ring = widest_ring(wiring, left, shift)
        if ring is None or ring.bytes_per_s < 0.02 * (rings[0].bytes_per_s if rings else 0.0):
            break
        rings.append(ring)
        for order in (ring.order,) if both_ways else (ring.order, ring.order[::-1]):
            _take(wiring, order, ring.bytes_per_s, left)
    return rings


def _take(wiring: Wiring, order: Sequence[int], bytes_per_s: float, left: list[float]) -> None:
    for number, times in _uses(wiring, order).items():
        rest = left[number] - times * bytes_per_s
        left[number] = rest if rest > 1e-6 * wiring.capacity[number] else 0.0


def _uses(wiring: Wiring, order: Sequence[int]) -> Counter[int]:
    """How often a ring uses each resource. A hop without a route (the way back of a one-way link) uses nothing."""
    hops = zip(order, [*order[1:], order[0]], strict=True)
    paths = (wiring.paths[a][b] for a, b in hops)
    return Counter(number for path in paths if path is not None for number in path.resources)


def _port_width(wiring: Wiring) -> float:
    """No set of rings is wider than what the narrowest device can send."""
    out = []
    for paths in wiring.paths:
        first = {path.links[0] for path in paths if path is not None}
        out.append(sum(wiring.capacity[number] for number in first))
    return min(out, default=0.0)


def _from_wide_to_narrow(widths: set[float], wiring: Wiring, left: Sequence[float]) -> list[float]:
    """The widths worth a search: each device must still have a hop out and a hop in that wide."""
    wide = [[_room(path.resources, left) if path else 0.0 for path in paths] for paths in wiring.paths]
    if len(wide) < 2:
        return []
    ceiling = min(min(map(max, wide)), min(map(max, zip(*wide, strict=True))))
    return sorted((width for width in widths if width <= ceiling * (1 + 1e-9)), reverse=True)


def _joined(wiring: Wiring, left: Sequence[float], width: float) -> bool:
    """Whether hops that wide lead from rank 0 to everybody and back: without that, a search is in vain."""
    ranks = range(len(wiring.paths))
    wide = [
        [_room(path.resources, left) >= width * (1 - 1e-9) if path else False for path in row] for row in wiring.paths
    ]
    for hops in (wide, list(zip(*wide, strict=True))):
        seen, todo = {0}, [0]
        while todo:
            at = todo.pop()
            fresh = [rank for rank in ranks if hops[at][rank] and rank not in seen]
            seen.update(fresh)
            todo += fresh
        if len(seen) < len(ranks):
            return False
    return True


def _room(resources: Sequence[int], left: Sequence[float]) -> float:
    return min(left[number] / resources.count(number) for number in resources)


def _search(wiring: Wiring, left: Sequence[float], width: float, shift: int) -> tuple[int, ...] | None:
    """A ring at least that wide, by backtracking from rank 0, nearest next rank first; None if none was found."""
    count = len(wiring.paths)
    uses: Counter[int] = Counter()
    order, budget = [0], SEARCH_STEPS
    options = [_next_ranks(wiring, 0, [0], shift)]
    while options:
        budget -= 1
        if budget < 0:
            return None
        at = order[-1]
        rank = next(options[-1], None)
        if rank is None:
            options.pop()
            order.pop()
            if order:
                uses.subtract(wiring.path(order[-1], at).resources)
            continue
        resources = wiring.path(at, rank).resources
        uses.update(resources)
        if any(left[number] < width * uses[number] for number in resources):
            uses.subtract(resources)
        elif len(order) == count:
            return tuple(order)
        else:
            order.append(rank)
            options.append(_next_ranks(wiring, rank, order, shift))
    return None


def _next_ranks(wiring: Wiring, at: int, order: Sequence[int], shift: int) -> Iterator[int]:
    count = len(wiring.paths)
    taken = set(order)
    ranks = [0] if len(order) == count else [rank for rank in range(count) if rank not in taken]
    reachable = [rank for rank in ranks if wiring.reaches(at, rank)]
    return iter(sorted(reachable, key=lambda rank: (wiring.path(at, rank).latency_s, (rank - at - 1 - shift) % count)))
