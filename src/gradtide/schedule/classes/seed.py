"""The seed of a schedule: what happens to the part of the buffer that rank 0 owns. All else is the same, turned.

A part is gathered along one axis after the other (inside the machine, then between machines), each axis by a tree on
its circle, and spread back. All slices of a part take the same way, one after the other, so that axes are busy at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.build.writer import Writer
from gradtide.schedule.classes.turns import Turns
from gradtide.schedule.model import Collective, Kind, Schedule

__all__ = ["Circle", "Course", "Leg", "circle", "seed_of"]

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Circle:
    """A tree on a circle of so many places into place 0: each place's parent, and the round in which it sends."""

    parents: Ints
    rounds: Ints
    needed: Ints  # in which order places are needed, if what they hold gets ready one after the other


def circle(kind: str, side: int) -> Circle:
    """ring, back: to the neighbour; direct: straight to place 0; halving: half of the places to the other half,
    then half of those: ceil(log2) rounds, whatever the number (Träff 2022)."""
    at = np.arange(side)
    if kind == "ring":
        return Circle(at - 1, side - 1 - at, side - 1 - at)
    if kind == "back":
        return Circle((at + 1) % side, at - 1, (at - 1) % side)
    if kind == "direct":
        return Circle(np.zeros(side, dtype=np.intp), at - 1, at)
    parents, rounds = at.copy(), np.zeros(side, dtype=np.intp)
    for turn, (left, half) in enumerate(_halves(side)):
        parents[half:left] -= half
        rounds[half:left] = turn
    order = [0]
    for left, half in reversed(_halves(side)):  # who sends in a round just before whom it sends to
        order = [place for to in order for place in (to + half, to) if place < left]
    return Circle(parents, rounds, np.argsort(order))


def _halves(side: int) -> list[tuple[int, int]]:
    """In each round the places that are left, and the first of those that send."""
    found = []
    while side > 1:
        found.append((side, (side + 1) // 2))
        side = (side + 1) // 2
    return found


@dataclass(frozen=True, slots=True)
class Leg:
    """One axis of the grid, and the trees to gather and to spread along it."""

    axis: int
    gather: str
    spread: str


@dataclass(frozen=True, slots=True)
class Course:
    """A share of the buffer, cut into slices, that is gathered along these legs in turn and spread back along them."""

    legs: tuple[Leg, ...]
    slices: int = 1
    weight: int = 1  # of each slice


def seed_of(
    name: str, collective: Collective, ranks: tuple[str, ...], turns: Turns, ways: Sequence[Course]
) -> Schedule:
    """Only what is about the parts of rank 0, a chunk a slice."""
    writer = Writer()
    first = channel = 0
    for way in ways:
        if collective in ("all_reduce", "reduce_scatter", "reduce"):
            _write(writer, _gather(turns, way), "reduce", way.slices, first, channel)
        if collective in ("all_reduce", "all_gather", "broadcast"):
            _write(writer, _spread(turns, way), "copy", way.slices, first, channel + len(way.legs))
        first += way.slices
        channel += 2 * len(way.legs)
    weights = tuple(way.weight for way in ways for _ in range(way.slices))
    owners = () if collective == "all_reduce" else (0,) * len(weights)
    return Schedule(name, collective, ranks, turns.count, weights, tuple(writer.ops), owners)


Moves = list[tuple[Ints, Ints, Ints]]  # of one round: the channel, who sends and to whom


def _write(writer: Writer, moves: Moves, kind: Kind, slices: int, first: int, channel: int) -> None:
    for channels, sources, targets in moves:
        sends = list(zip(sources.tolist(), targets.tolist(), (channel + channels).tolist(), strict=True))
        for chunk in range(first, first + slices):
            for source, target, lane in sends:
                writer.send(source, target, chunk, kind, lane)


def _gather(turns: Turns, way: Course) -> Moves:
    """Round after round. In a round, who is needed the soonest on the next legs goes first."""
    moves: Moves = []
    for number in range(len(way.legs)):
        sources, targets, rounds, order = _leg(turns, way, number, "gather")
        for turn in range(int(rounds.max(initial=-1)) + 1):
            now = np.flatnonzero(rounds == turn)
            now = now[np.lexsort([keys[now] for keys in order])]
            moves.append((np.full(len(now), number), sources[now], targets[now]))
    return moves


def _spread(turns: Turns, way: Course) -> Moves:
    """The same backwards."""
    moves: Moves = []
    for number in reversed(range(len(way.legs))):
        targets, sources, rounds, order = _leg(turns, way, number, "spread")
        if way.legs[number].spread == "direct":
            rounds = np.zeros_like(rounds)
        for turn in reversed(range(int(rounds.max(initial=-1)) + 1)):
            now = np.flatnonzero(rounds == turn)
            now = now[np.lexsort([-keys[now] for keys in order])]
            # What comes from different places arrives in no fixed order: each has a lane of its own, and none waits.
            places = np.zeros(len(now), dtype=np.intp)
            for keys in order[1:]:
                places = places * turns.count + keys[now]
            lanes = len(way.legs) - 1 - number + 2 * len(way.legs) * _ranked(places)
            moves.append((lanes, sources[now], targets[now]))
    return moves


def _ranked(keys: Ints) -> Ints:
    """Equal keys get equal numbers, from 0 on."""
    return np.unique(keys, return_inverse=True)[1].astype(np.intp)


def _leg(turns: Turns, way: Course, number: int, direction: str) -> tuple[Ints, Ints, Ints, list[Ints]]:
    """Who sends on a leg, to whom, in which round; and what to order them by, the last leg first."""
    sides, coordinates = turns.sides, list(turns.coordinates(np.arange(turns.count)))
    leg = way.legs[number]
    here = coordinates[leg.axis] != 0
    for earlier in way.legs[:number]:
        here &= coordinates[earlier.axis] == 0
    sources = np.flatnonzero(here)
    along = [axis[sources] for axis in coordinates]
    trees = {each.axis: circle(getattr(each, direction), sides[each.axis]) for each in way.legs[number:]}
    order = [trees[each.axis].needed[along[each.axis]] for each in way.legs[number:]]
    tree, at = trees[leg.axis], along[leg.axis]
    targets = turns.places(tuple(tree.parents[at] if axis == leg.axis else x for axis, x in enumerate(along)))
    return sources, targets, tree.rounds[at], order
