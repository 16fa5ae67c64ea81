"""Trees between machines whose NICs differ, and the part of the buffer that each must carry for all to end together.

A tree belongs to a rail (the NICs of one place in every machine) and to a root, one of the faster machines: these send
to the root directly, slower ones to a faster one first, so a slow machine sends and receives no more than it must. A
machine whose NIC of that rail is dead or far slower than its others takes these others in turn. A linear programme then
finds the parts with which the busiest NIC is done soonest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.build.exits import Exit, MachineExits
from gradtide.schedule.build.wiring import need
from gradtide.schedule.packing.linear import LinearProgramme, minimise
from gradtide.schedule.request import Request

__all__ = ["RailTree", "halved", "needed", "rail_trees"]

T = TypeVar("T")
Floats = NDArray[np.float64]

FAST_MACHINE = 0.75  # of the fastest one: slower machines are leaves
USEFUL_EXIT = 0.25  # of a machine's fastest NIC: what is slower stays unused
EVENNESS = 0.01  # of the time may go into parts that are more alike
LEAST_PART = 1e-4  # of the buffer, for a tree to be worth its ops


@dataclass(frozen=True, slots=True)
class RailTree:
    """The NICs that a part of the buffer takes: the root's, those that exchange with it in turn, and leaves."""

    part: float
    trunk: tuple[Exit, ...]  # the root first
    leaves: tuple[tuple[Exit, Exit], ...]  # (leaf, whom it sends to)


def rail_trees(request: Request, machines: list[MachineExits]) -> list[RailTree]:
    """The trees, each with its part; parts sum to one."""
    trees = _weighted(_all_trees(request, machines), machines)
    kept = [tree for tree in trees if tree.part > LEAST_PART]
    total = sum(tree.part for tree in kept)
    return [RailTree(tree.part / total, tree.trunk, tree.leaves) for tree in kept]


def _all_trees(request: Request, machines: list[MachineExits]) -> list[RailTree]:
    ways = [_useful(machine) for machine in machines]
    rates = [sum(way.bytes_per_s for way in each) for each in ways]
    fast = [at for at, rate in enumerate(rates) if rate >= FAST_MACHINE * max(rates)]
    slow = [at for at in range(len(machines)) if at not in fast]
    places = sorted({way.place for each in ways for way in each})
    trees = []
    for rail, place in enumerate(places):
        for turn, root in enumerate(fast):
            heads = [_head(each, place, rail + turn) for each in ways]
            if heads[root].place != place:
                continue  # the others' trees of this rail have roots enough
            trunk = tuple(heads[at] for at in [*fast[turn:], *fast[:turn]])
            leaves = tuple((heads[at], trunk[number % len(trunk)]) for number, at in enumerate(slow))
            if _connected(request, trunk, leaves):
                trees.append(RailTree(0.0, trunk, leaves))
    need(bool(trees), "no rail leads to every machine")
    return trees


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
    """With the parts that make the busiest NIC least busy; what a NIC sends in a tree, it receives as well."""
    rates = np.array([way.bytes_per_s for machine in machines for way in machine.exits])
    loads = np.zeros((len(rates), len(trees)))
    for at, tree in enumerate(trees):
        for child, parent in (*tree.leaves, *chain.from_iterable(halved(tree.trunk))):
            loads[[child.number, parent.number], at] += 1.0
    loads *= (rates.max() / rates)[:, None]
    parts = _most_even(loads, _least_time(loads)).tolist()
    return [RailTree(part, tree.trunk, tree.leaves) for part, tree in zip(parts, trees, strict=True)]


def _least_time(loads: Floats) -> float:
    """Of the busiest NIC."""
    count = loads.shape[1]
    return minimise(
        LinearProgramme(
            np.append(1.0, np.zeros(count)),
            at_most=np.hstack([-np.ones((len(loads), 1)), loads]),
            limits=np.zeros(len(loads)),
            equal=np.append(0.0, np.ones(count))[None],
            sides=np.ones(1),
        )
    ).value


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
