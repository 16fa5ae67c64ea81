"""ring, ring-both-ways, rings-one-way, rings: parts travel round one ring, or round as many as the links give."""

from gradtide.schedule.build.rings import Ring, find_rings, integer_weights, ring_width, widest_ring
from gradtide.schedule.build.shapes import chain_parts
from gradtide.schedule.build.wiring import Wiring, need, slices_for, wiring_of
from gradtide.schedule.build.writer import assemble
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy

NO_RING = "the links between these devices form no ring"


@strategy("ring")
def ring(request: Request) -> Schedule:
    wiring = wiring_of(request)
    return _along(request, "ring", wiring, [_widest(wiring)])


@strategy("ring-both-ways")
def ring_both_ways(request: Request) -> Schedule:
    """Half the buffer goes round one way, half the other way: twice as fast where the two ways share no link."""
    wiring = wiring_of(request)
    there = _widest(wiring)
    back = there.order[::-1]
    need(all(wiring.reaches(a, b) for a, b in zip(back, [*back[1:], back[0]], strict=True)), "the ring has no way back")
    return _along(request, "ring-both-ways", wiring, [there, Ring(back, ring_width(wiring, back))])


@strategy("rings-one-way")
def rings_one_way(request: Request) -> Schedule:
    return _along(request, "rings-one-way", *_found(request, both_ways=False))


@strategy("rings")
def rings(request: Request) -> Schedule:
    return _along(request, "rings", *_found(request, both_ways=True))


def _widest(wiring: Wiring) -> Ring:
    found = widest_ring(wiring)
    if found is None:
        need(False, NO_RING)
    assert found is not None
    return found


def _found(request: Request, both_ways: bool) -> tuple[Wiring, list[Ring]]:
    wiring = wiring_of(request)
    found = find_rings(wiring, both_ways)
    need(bool(found), NO_RING)
    return wiring, found


def _along(request: Request, name: str, wiring: Wiring, found: list[Ring]) -> Schedule:
    """Each ring is a channel and carries a share of the buffer in proportion to its width."""
    latency_s = max(wiring.path(a, b).latency_s for r in found for a, b in zip(r.order, r.order[1:], strict=False))
    slices = slices_for(request, sum(r.bytes_per_s for r in found), latency_s)
    weights = integer_weights(found)
    parts = [
        part
        for channel, (one, weight) in enumerate(zip(found, weights, strict=True))
        for part in chain_parts(request, one.order, weight, channel, slices)
    ]
    return assemble(request, name, parts)
