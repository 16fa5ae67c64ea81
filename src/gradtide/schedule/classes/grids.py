"""The grid that a request's devices stand on: pod, rack, machine and place in it; or a torus' own axes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.classes.pair_routes import PairRoutes
from gradtide.schedule.classes.turns import Turns
from gradtide.schedule.cuts.partitions import Ground, ground_of, nested
from gradtide.schedule.request import NotApplicable, Request
from gradtide.topology.model import Topology

__all__ = ["Grid", "grid_of"]

Ints = NDArray[np.intp]

MANY_GROUPS = (
    16  # racks: the 40 of superpod:1250 are planned 2.8 times the bound in groups of 25 hosts, 1.6 in such of 5
)
LEAST_GROUP = 3
FEW_GROUPS = 2  # superpod:40 is planned 1.06 times the bound without racks, 1.07 with; superpod:66 1.20 and 1.06


@dataclass(frozen=True, eq=False)
class Grid:
    """Devices in the order of their places, the axes from the outermost (pods, racks) to the innermost (GPUs)."""

    turns: Turns
    ranks: tuple[str, ...]
    torus: bool  # neighbours along every axis are wired to each other, and nobody else is
    routes: PairRoutes


def grid_of(request: Request) -> Grid:
    """The grid of a request, found once for all sizes; NotApplicable where its machines are not alike."""
    found = _grid(request.topology, request.devices)
    if isinstance(found, str):
        raise NotApplicable(found)
    if request.collective != "all_reduce" and found.ranks != request.devices:
        raise NotApplicable("each device owns a part, but devices of one machine don't stand together")
    return found


@lru_cache(maxsize=4)
def _grid(topology: Topology, devices: tuple[str, ...]) -> Grid | str:
    request = Request(topology, devices, 1)
    sides = _torus_sides(request)
    if sides:
        turns = Turns(sides)
        return Grid(turns, devices, True, PairRoutes(topology, request.routes, devices, turns))
    levels = _levels(ground_of(request))
    if levels is None:
        return "machines have different numbers of devices"
    order, sides = levels
    ranks, turns = tuple(devices[at] for at in order.tolist()), Turns(sides)
    return Grid(turns, ranks, False, PairRoutes(topology, request.routes, ranks, turns))


def _levels(ground: Ground) -> tuple[Ints, tuple[int, ...]] | None:
    """The devices' order by pod, rack and machine, and how many of each are in the next. None where machines differ.

    Where groups of a level are of different sizes (a rack is half full), a few are left out. If there are more, groups
    of one size take their place that are not quite racks: as many machines as fit in one and divide the whole. Most of
    what is sent then stays in a rack or two. Of many racks hardly one would begin where a group does: few machines.
    """
    labels = [each[ground.asked] for each in nested(ground)]  # machines, racks, pods
    order = np.lexsort([np.arange(len(ground.asked)), *labels])
    sizes = []
    for at, label in enumerate(labels):
        counts = np.unique(label, return_counts=True)[1]
        if (counts == counts[0]).all():
            sizes.append(int(counts[0]))
        elif at == 0:
            return None
        elif counts.max() < sizes[-1]:
            continue  # one machine's switches in parts: no more than the machine
        elif len(counts) > FEW_GROUPS and not np.array_equal(label, labels[at - 1]):
            sizes.append(_nearly(int(counts.max()), sizes[-1], len(order), few=len(counts) > MANY_GROUPS))
    bounds = [1, *sorted(set(sizes) | {len(order)})]
    sides = [upper // lower for lower, upper in pairwise(bounds) if upper > lower]
    return order, tuple(reversed(sides))


def _nearly(group: int, inner: int, whole: int, *, few: bool) -> int:
    """The largest size up to that of a group that inner groups fill and that divides the whole; few: the smallest."""
    sizes = [size for size in range(inner, group + 1, inner) if whole % size == 0]
    return min((size for size in sizes if size >= LEAST_GROUP * inner), default=sizes[-1]) if few else sizes[-1]


def _torus_sides(request: Request) -> tuple[int, ...]:
    """The sides of a torus whose devices stand in the order of their places, or nothing."""
    links, devices = request.topology.links, request.devices
    number = {name: at for at, name in enumerate(devices)}
    if len(request.topology.nodes) != len(devices) or any(link.wire for link in links):
        return ()
    pairs = {(number[link.source], number[link.target]) for link in links}
    near = {b for a, b in pairs if a == 0}
    for sides in _possible_sides(near, 1, len(devices)):
        if len(sides) > 1 and pairs == _torus_pairs(Turns(sides)):
            return sides
    return ()


def _possible_sides(near: set[int], stride: int, count: int) -> Iterator[tuple[int, ...]]:
    """Sides, the innermost last, with which the first device's neighbours would be these."""
    if stride == count:
        yield ()
    for side in range(2, count // stride + 1):
        if stride * (side - 1) in near and count % (stride * side) == 0:
            yield from ((*outer, side) for outer in _possible_sides(near, stride * side, count))


def _torus_pairs(turns: Turns) -> set[tuple[int, int]]:
    everyone, found, stride = np.arange(turns.count), set[tuple[int, int]](), 1
    for side in reversed(turns.sides):
        for step in (stride, stride * (side - 1)):
            found |= set(zip(everyone.tolist(), turns.add(everyone, step).tolist(), strict=True))
        stride *= side
    return found
