"""Trees between machines whose NICs differ, and the part of the buffer that each must carry for all to end together.

A tree belongs to a rail (the NICs of one place in every machine) and to a root. Two kinds are known, and which is
sooner depends on how many machines are slow, and how slow:

- leaf_trees: the fast machines add up among themselves, and slower ones are leaves on the root: they send and receive
  no more than they must. The root hears from them last. What is alike then keeps in step, as if they weren't there:
  heard first, they made all others wait (mixed:2+6 in 16 slices: 1.28 times the bound, 1.07 if they are heard last).
- least_trees: all machines alike, but each rail carries no more than its slowest NIC can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.build.exits import Exit, MachineExits
from gradtide.schedule.packing.linear import LinearProgramme, Solution, minimise
from gradtide.schedule.request import Request

__all__ = ["RailTree", "halved", "leaf_trees", "least_time", "least_trees", "needed", "nic_loads"]

T = TypeVar("T")
Floats = NDArray[np.float64]

SAME = 0.999  # of the fastest one: machines or NICs that are as fast
USEFUL_EXIT = 0.25  # of a machine's fastest NIC: what is slower stays unused
EVENNESS = 0.03  # of the time may go into parts that are more alike
LEAST_PART = 1e-4  # of the buffer, for a tree to be worth its ops


@dataclass(frozen=True, slots=True)
class RailTree:
    """The NICs that a part of the buffer takes: the root's, those that exchange with it in turn, and leaves."""

    part: float
    trunk: tuple[Exit, ...]  # the root first
    leaves: tuple[tuple[Exit, Exit], ...]  # (leaf, whom it sends to: the root, or a neighbour in its machine)


def leaf_trees(request: Request, machines: list[MachineExits]) -> list[RailTree]:
    """Fast machines in the trunk, slower ones as leaves on the root; none where no rail leads to every machine."""
    rates = [sum(way.bytes_per_s for way in machine.exits) for machine in machines]
    fast = [at for at, rate in enumerate(rates) if rate >= SAME * max(rates)]
    slow = [at for at in range(len(machines)) if at not in fast]
    ways = [_useful(machine) for machine in machines]
    places = sorted({way.place for at in fast for way in ways[at]})
    fastest = max(way.bytes_per_s for at in fast for way in ways[at])
    busy = (2 * len(machines) - 2 - len(slow)) / fastest  # of a NIC of the trunk
    for at in slow:
        ways[at] = _alike_if_enough(request, ways[at], ways[fast[0]], len(places) * len(fast) / busy)
    own = {at: len(places) * len(fast) / sum(way.bytes_per_s for way in ways[at]) for at in slow}
    carried = dict.fromkeys((way.number for at in slow for way in ways[at]), 0)
    trees = []
    for rail, place in enumerate(places):
        for turn, root in enumerate(fast):
            heads = {at: _head(ways[at], place, rail + turn) for at in fast}
            if heads[root].place != place:
                continue  # the others' trees of this rail have roots enough
            trunk = tuple(heads[at] for at in [*fast[turn:], *fast[:turn]])
            if not _connected(request, trunk, ()):
                continue
            found = [_leaf_way(request, ways[at], (trunk[0], *ways[root]), carried, max(busy, own[at])) for at in slow]
            leaves = tuple(way for way in found if way)
            if len(leaves) == len(slow):
                trees.append(RailTree(0.0, trunk, leaves))
                for leaf, _ in leaves:
                    carried[leaf.number] += 1
    return _whole(_weighted(trees, machines)) if trees else []


def _alike_if_enough(request: Request, ways: list[Exit], root_ways: list[Exit], enough: float) -> list[Exit]:
    """The fastest NICs of a leaf alone, if they carry enough and lead to every rail: what is alike keeps in step."""
    fastest = max(way.bytes_per_s for way in ways)
    alike = [way for way in ways if way.bytes_per_s >= SAME * fastest]
    if sum(way.bytes_per_s for way in alike) < enough:
        return ways
    return alike if all(_connected(request, (), ((alike[0], to),)) for to in root_ways) else ways


def _leaf_way(
    request: Request, ways: list[Exit], root_ways: tuple[Exit, ...], carried: dict[int, int], most: float
) -> tuple[Exit, Exit] | None:
    """The NIC of a leaf and the NIC of the root's machine that it sends to.

    Those of the root's rail, unless the leaf's would be busy for longer than others; else another NIC of the leaf, to
    the root itself (the first of its machine's) where rails are joined, to a neighbour of it where they aren't.
    """

    def busy(way: tuple[Exit, Exit]) -> float:
        return (carried[way[0].number] + 1) / way[0].bytes_per_s

    for to in (root_ways[:1], root_ways[1:]):
        pairs = [(way, end) for end in to for way in ways if _connected(request, (), ((way, end),))]
        own = next((pair for pair in pairs if pair[0].place == pair[1].place == root_ways[0].place), None)
        if own is not None and busy(own) <= (2 - SAME) * most:
            return own
        others = [pair for pair in pairs if pair[0].place != root_ways[0].place]
        if others:
            return min(others, key=busy)
    return None


def least_trees(request: Request, machines: list[MachineExits]) -> list[RailTree]:
    """Every machine in the trunk, on the rails that all have; none where they have none."""
    trees = []
    for place in sorted({way.place for machine in machines for way in machine.exits}):
        ways = [way for machine in machines for way in machine.exits if way.place == place]
        slowest = min(way.bytes_per_s for way in ways)
        turned = [tuple(ways[at:] + ways[:at]) for at in range(len(ways))]
        if len(ways) == len(machines) and all(_connected(request, trunk, ()) for trunk in turned):
            trees += [RailTree(slowest, trunk, ()) for trunk in turned]
    return _whole(trees)


def _whole(trees: list[RailTree]) -> list[RailTree]:
    """Without those that carry next to nothing; parts sum to one."""
    total = sum(tree.part for tree in trees)
    kept = [tree for tree in trees if tree.part > LEAST_PART * total]
    total = sum(tree.part for tree in kept)
    return [RailTree(tree.part / total, tree.trunk, tree.leaves) for tree in kept]


def halved(places: Sequence[T]) -> list[list[tuple[T, T]]]:
    """Rounds in which each of the second half sends to one of the first, until the first place has all."""
    left, rounds = list(places), []
    while len(left) > 1:
        kept = (len(left) + 1) // 2
        rounds.append([(left[kept + at], left[at]) for at in range(len(left) - kept)])
        left = left[:kept]
    return rounds


def needed(rounds: Sequence[Sequence[tuple[T, T]]], root: T) -> dict[T, int]:
    """When each must have gathered what it sends to its parent: children just before their parent, the last first."""
    order = [root]
    for level in reversed(rounds):
        children: dict[T, list[T]] = {}
        for child, parent in level:
            children.setdefault(parent, []).append(child)
        order = [place for to in order for place in (*children.get(to, ()), to)]
    return {place: at for at, place in enumerate(order)}


def _useful(machine: MachineExits) -> list[Exit]:
    fastest = max(way.bytes_per_s for way in machine.exits)
    return [way for way in machine.exits if way.bytes_per_s >= USEFUL_EXIT * fastest]


def _head(ways: list[Exit], place: int, turn: int) -> Exit:
    return next((way for way in ways if way.place == place), ways[turn % len(ways)])


def _connected(request: Request, trunk: tuple[Exit, ...], leaves: tuple[tuple[Exit, Exit], ...]) -> bool:
    names, find = request.devices, request.routes.find
    pairs = (*leaves, *chain.from_iterable(halved(trunk)))
    ends = [(names[a.ranks[0]], names[b.ranks[0]]) for a, b in pairs]
    return all(find(a, b) is not None and find(b, a) is not None for a, b in ends)


def _weighted(trees: list[RailTree], machines: list[MachineExits]) -> list[RailTree]:
    """With the parts that make the busiest NIC least busy."""
    loads = nic_loads(trees, machines)
    parts = _most_even(loads, least_time(loads).value).tolist()
    return [RailTree(part, tree.trunk, tree.leaves) for part, tree in zip(parts, trees, strict=True)]


def nic_loads(trees: list[RailTree], machines: list[MachineExits]) -> Floats:
    """NICs × trees: how long a byte of each tree keeps each NIC busy; what a NIC sends in a tree, it receives as well.

    In times of the fastest NIC for one byte.
    """
    rates = np.array([way.bytes_per_s for machine in machines for way in machine.exits])
    loads = np.zeros((len(rates), len(trees)))
    for at, tree in enumerate(trees):
        for child, parent in (*tree.leaves, *chain.from_iterable(halved(tree.trunk))):
            loads[[child.number, parent.number], at] += 1.0
    slower: Floats = loads * (rates.max() / rates)[:, None]
    return slower


def least_time(loads: Floats) -> Solution:
    """Of the busiest NIC, and behind it the part of each column."""
    count = loads.shape[1]
    return minimise(
        LinearProgramme(
            np.append(1.0, np.zeros(count)),
            at_most=np.hstack([-np.ones((len(loads), 1)), loads]),
            limits=np.zeros(len(loads)),
            equal=np.append(0.0, np.ones(count))[None],
            sides=np.ones(1),
        )
    )


def _most_even(loads: Floats, least: float) -> Floats:
    """Parts that take hardly longer, the largest as small as can be: equal chunks keep in step with each other."""
    count = loads.shape[1]
    no_larger = np.hstack([-np.ones((count, 1)), np.eye(count)])
    programme = LinearProgramme(
        np.append(1.0, np.zeros(count)),
        at_most=np.vstack([np.hstack([np.zeros((len(loads), 1)), loads]), no_larger]),
        limits=np.append(np.full(len(loads), least * (1 + EVENNESS)), np.zeros(count)),
        equal=np.append(0.0, np.ones(count))[None],
        sides=np.ones(1),
    )
    return minimise(programme).x[1:]
