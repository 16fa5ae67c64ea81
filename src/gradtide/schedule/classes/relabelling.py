"""Turning a cluster relabels all its nodes: whether that is an automorphism of the wiring, the routes and the schedule.

A turn says where every rank comes to. What lies on a rank's route then has to come to what lies on the route of the
rank whose place it takes: that gives every link and wire its image, and every switch and NIC. `difference` compares the
two in full: each route with its image, each link's ends, speed and latency. `check_ops` compares a schedule, op by op.
The turns by one place along each axis make all others, so it is enough to look at those few.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.errors import ScheduleError
from gradtide.schedule.classes.generated import GeneratedSchedule
from gradtide.schedule.classes.pair_routes import PairRoutes
from gradtide.schedule.classes.turns import Turns

__all__ = ["Relabelling", "check_ops", "difference", "relabelled", "units", "why_not_alike"]

Ints = NDArray[np.intp]

UNUSED = -1


@dataclass(frozen=True, eq=False)
class Relabelling:
    """Where everything comes to. UNUSED is what no route passes."""

    ranks: Ints  # places of the grid
    links: Ints  # links of the topology, then the wires that several share
    nodes: Ints


def units(turns: Turns) -> list[int]:
    """The turns by one place along each axis."""
    strides = np.cumprod([1, *reversed(turns.sides)])[:-1]
    return [int(stride) for stride, side in zip(strides, reversed(turns.sides), strict=True) if side > 1]


def why_not_alike(routes: PairRoutes, distances: Sequence[int]) -> str:
    """In what places that a turn brings onto each other differ, for pairs at these distances; empty if in nothing."""
    for turn in units(routes.turns):
        found = difference(routes, distances, relabelled(routes, distances, turn))
        if found:
            return found
    return ""


def relabelled(routes: PairRoutes, distances: Sequence[int], turn: int) -> Relabelling:
    """What a turn does to all that these routes pass; where two routes disagree, the later one's say."""
    ranks = routes.turns.add(np.arange(routes.turns.count), turn)
    links = np.full(len(routes.rates) + 1, UNUSED)  # the last is what routes are filled up with
    for distance in distances:
        rows, _ = routes.at(distance)
        links[rows] = rows[ranks]
    links = links[:-1]
    used = np.flatnonzero(links[: len(routes.sources)] >= 0)
    nodes = np.full(routes.node_count, UNUSED)
    for ends in (routes.sources, routes.targets):
        nodes[ends[used]] = np.append(ends, np.full(len(routes.rates) - len(ends), UNUSED))[links[used]]
    nodes[routes.rank_nodes] = routes.rank_nodes[ranks]
    return Relabelling(ranks, links, nodes)


def difference(routes: PairRoutes, distances: Sequence[int], found: Relabelling) -> str:
    """The first thing that a relabelling does not keep, in words; empty where it is an automorphism of what is used."""
    for what, image in (("ranks", found.ranks), ("links", found.links), ("nodes", found.nodes)):
        there = image[image >= 0]
        if len(np.unique(there)) < len(there):
            return f"two {what} come to one place"
    if (found.nodes[routes.rank_nodes] != routes.rank_nodes[found.ranks]).any():
        return "a device comes to another place than its rank"
    onto = np.append(found.links, UNUSED)
    for distance in distances:
        rows, _ = routes.at(distance)
        places = routes.turns.add(found.ranks, distance)
        wrong = (onto[rows] != rows[found.ranks]).any(axis=1)
        wrong |= places != found.ranks[routes.turns.add(np.arange(routes.turns.count), distance)]
        if wrong.any():
            return f"the route {routes.pair_name(int(wrong.argmax()), distance)} does not come to a route"
    return _unlike_links(routes, found)


def _unlike_links(routes: PairRoutes, found: Relabelling) -> str:
    """The first link that does not come to one like it."""
    plain = len(routes.sources)
    used = np.flatnonzero(found.links >= 0)
    links = used[used < plain]
    to = found.links[links]
    if (to >= plain).any():
        return "a link comes to a wire"
    wires = routes.wires[links]
    checks = (
        ("joins other nodes", links, (found.nodes[routes.sources[links]] != routes.sources[to])),
        ("joins other nodes", links, (found.nodes[routes.targets[links]] != routes.targets[to])),
        ("is not as fast", used, (routes.rates[used] != routes.rates[found.links[used]])),
        ("is not as near", links, (routes.latencies[links] != routes.latencies[to])),
        ("is on another wire", links, np.append(found.links, UNUSED)[wires] != routes.wires[to]),
    )
    for what, numbers, wrong in checks:
        if wrong.any():
            one = int(numbers[wrong.argmax()])
            return f"{routes.names[one]} comes to {routes.names[found.links[one]]}, which {what}"
    return ""


def check_ops(schedule: GeneratedSchedule, ranks: Ints, owners: Ints) -> None:
    """Raises unless a relabelling of ranks takes each op about these owners' chunks to the same op of their images."""
    turns, everyone = schedule.turns, np.arange(schedule.turns.count)
    if len(ranks) != turns.count or (np.sort(ranks) != everyone).any():
        raise ScheduleError(f"{schedule.name}: two ranks come to one place: no relabelling")
    places = turns.add(everyone[:, None], owners[None, :])
    if (np.sort(places, axis=0) != everyone[:, None]).any():
        raise ScheduleError(f"{schedule.name}: turning the grid puts two ranks in one place: no relabelling")
    used = np.unique([(op.src, op.dst) for op in schedule.seed.ops])
    wrong = (ranks[places] != turns.add(everyone[:, None], ranks[owners][None, :]))[used]
    if wrong.any():
        place, owner = np.unravel_index(int(wrong.argmax()), wrong.shape)
        rank, whose = places[used[place], owner], owners[owner]
        raise ScheduleError(
            f"{schedule.name}: what rank {rank} does with a chunk of rank {whose}'s is not what rank {ranks[rank]} "
            f"does with one of rank {ranks[whose]}'s: not alike"
        )
