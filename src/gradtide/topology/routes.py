"""The way a message takes: the links from one node to another, through switches, NICs and hosts."""

from itertools import pairwise

from gradtide.topology.core import NOWHERE, Cost, link_cost
from gradtide.topology.model import Link, Topology
from gradtide.topology.passing import PassingNodes

__all__ = ["Route", "Routes"]

Route = tuple[Link, ...]
Chain = tuple[tuple[str, Cost, Route], ...]  # nodes above an end, each with the way between it and that end
FIRST: tuple[int, ...] = (0,)


class Routes:
    """The route of each pair of nodes: least latency first, then fewest links, then the widest narrowest link.

    A device never passes traffic on: where no route exists, a schedule must copy in several ops. Each pair has exactly
    one route, always the same. Where several switches of the core are equally good (the spines above a leaf, the cores
    above a spine), the target's place decides: the first choice goes by its number on its leaf, the next by its leaf's
    number among those of its pod, and so on. That is how InfiniBand's fat-tree routing spreads (d-mod-k): the hosts
    of a leaf are sent to over different spines, and if all hosts send to the one so many places further, no wire
    between switches carries more than its share. Any other tie goes to the link that is described first.

    Routes are found when they are asked for, and only through what can lie between the two: up from the one to where
    it meets what is above the other, or to the core and through it.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._passing: PassingNodes | None = None
        self._found: dict[tuple[str, str], Route | None] = {}
        self._up: dict[str, Chain] = {}
        self._down: dict[str, Chain] = {}
        self._leaps: dict[tuple[str, str], Cost | None] = {}
        self._across: dict[tuple[str, str, tuple[int, ...]], Route] = {}

    def find(self, source: str, target: str) -> Route | None:
        """The links from source to target, or None where none lead there."""
        pair = (source, target)
        if pair not in self._found:
            self._found[pair] = self._search(source, target) if source != target else None
        return self._found[pair]

    @property
    def _nodes(self) -> PassingNodes:
        if self._passing is None:
            self._passing = PassingNodes(self._topology)
        return self._passing

    def _search(self, source: str, target: str) -> Route | None:
        """The cheapest of: the link itself, the ways that meet above both, the ways through the core."""
        nodes = self._nodes
        direct = nodes.between.get((source, target))
        best: Cost | None = link_cost(direct) if direct else None
        ends: tuple[tuple[str, Cost, Route], tuple[str, Cost, Route]] | None = None
        falls = self._chain(target, upwards=False)
        for rise in self._chain(source, upwards=True):
            high = rise[0] in nodes.in_core
            for fall in falls:
                if rise[0] == fall[0]:
                    between: Cost | None = NOWHERE
                elif high and fall[0] in nodes.in_core:
                    between = self._leap(rise[0], fall[0])
                else:
                    continue
                if between is not None:
                    cost = _added(_added(rise[1], between), fall[1])
                    if best is None or cost < best:
                        best, ends = cost, (rise, fall)
        if ends is None:
            return (direct,) if direct else None
        rise, fall = ends
        if rise[0] == fall[0]:
            return (*rise[2], *fall[2])
        below = fall[2][0].target if fall[2] else target
        return (*rise[2], *self._through_core(rise[0], fall[0], below), *fall[2])

    def _leap(self, source: str, target: str) -> Cost | None:
        """What lies between two nodes of the core."""
        pair = (source, target)
        if pair not in self._leaps:
            self._leaps[pair] = self._nodes.core.cost(source, target)
        return self._leaps[pair]

    def _chain(self, end: str, *, upwards: bool) -> Chain:
        known = self._up if upwards else self._down
        if end not in known:
            known[end] = tuple(self._climb(end, upwards))
        return known[end]

    def _climb(self, end: str, upwards: bool) -> list[tuple[str, Cost, Route]]:
        """Every node that passes traffic on and is above `end`, with the links from it (or to it)."""
        nodes = self._nodes
        if end in nodes.passes:
            starts = [end]
        else:
            near = (link.target for link in nodes.out[end]) if upwards else (link.source for link in nodes.into[end])
            starts = [name for name in dict.fromkeys(near) if name in nodes.passes]
        found: list[tuple[str, Cost, Route]] = []
        for start in starts:
            names = [*([end] if start != end else []), *nodes.above([start])]
            cost: Cost = NOWHERE
            way: Route = ()
            if start == end:
                found.append((end, cost, way))
            for lower, upper in pairwise(names):
                link = nodes.between.get((lower, upper) if upwards else (upper, lower))
                if link is None:
                    break  # a wire that leads the other way only
                cost = _added(cost, link_cost(link))
                way = (*way, link) if upwards else (link, *way)
                found.append((upper, cost, way))
        return found

    def _through_core(self, source: str, target: str, below: str) -> Route:
        """From one node of the core to another; `below` is what hangs on the other and is on the way to the target."""
        first = self._walk(source, target, FIRST)
        return self._walk(source, target, _places(self._nodes, first, below) or FIRST)

    def _walk(self, source: str, target: str, places: tuple[int, ...]) -> Route:
        """The way on which the first choice goes by the first place, the next by the next, all others by the last."""
        key = (source, target, places)
        if key not in self._across:
            links: list[Link] = []
            at, left = source, list(places)
            while at != target:
                steps = self._nodes.core.steps(at, target)
                links.append(steps[left[0] % len(steps)])
                at = links[-1].target
                if len(steps) > 1 and len(left) > 1:
                    left.pop(0)
            self._across[key] = tuple(links)
        return self._across[key]


def _places(nodes: PassingNodes, way: Route, below: str) -> tuple[int, ...]:
    """The number of `below` among what hangs on the last node of a way, that node's below the one before it, and so on.

    A node that has nothing beside it says nothing, and is left out.
    """
    places, child = [], below
    for link in reversed(way):
        beside = nodes.beside(link.target, in_core=child in nodes.in_core)
        if len(beside) > 1 and child in beside:
            places.append(beside[child])
        child = link.target
    return tuple(places)


def _added(a: Cost, b: Cost) -> Cost:
    return a[0] + b[0], a[1] + b[1], a[2] if a[2] > b[2] else b[2]
