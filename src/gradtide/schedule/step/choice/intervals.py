"""The figures of every stage that a model can be cut into: units first to last - 1, for each number of shards.

It is choose_ways for all stages and numbers of shards at once: one walk over the units, in which every stage that began
before goes on. Arrays have one place a stage, those that begin with the same unit side by side (`Triangle`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gradtide.schedule.step.choice.figures import StageFigures, exchanged, unit_figures
from gradtide.schedule.step.choice.states import STATES, WHOLE, UnitLinks, fits, kept_bytes, move
from gradtide.schedule.step.choice.ways import COUNTS, Preference, ShardWire, exchange_seconds, weigh
from gradtide.schedule.step.costs import UNKNOWN

__all__ = ["Triangle", "figures_of_all"]

Array = npt.NDArray[np.float64]
SUMS = 15  # the first figures are added up unit by unit; of the next two, and of LARGEST, the largest counts
FIGURES = 17  # after them stands what the open segment saves
SAVED, LARGEST, PEAK, FIXED, OPEN = 8, 10, 15, 16, 17


class Triangle:
    """Where each stage stands in a flat array."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.begin = np.concatenate(([0], np.cumsum(np.arange(units, 0, -1))))
        self.size = int(self.begin[-1])

    def at(self, first: int, last: int) -> int:
        return int(self.begin[first]) + last - 1 - first

    def ending(self, last: int) -> npt.NDArray[np.int64]:
        """The places of the stages that end before unit `last`, by their first unit."""
        first = np.arange(last)
        return np.asarray(self.begin[first] + (last - 1 - first))

    def flat(self, square: Array) -> Array:
        """From an array by first unit and last."""
        rows, columns = np.triu_indices(self.units)
        return np.asarray(square[rows, columns + 1])


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    links: UnitLinks
    shards: npt.NDArray[np.int64]
    wire: ShardWire  # arrays, one place a number of shards
    counts: tuple[Array, Array]  # what a second and a byte count

    def table(self, numbers: Sequence[Any]) -> Array:
        """A row for each number of shards, with these in its columns."""
        found = np.empty((len(self.shards), len(numbers)))
        for column, number in enumerate(numbers):
            found[:, column] = number
        return found


@dataclass(slots=True, eq=False)
class _Candidates:
    """The ways to come to one state with one unit, each with a row by number of shards."""

    sources: list[int] = field(default_factory=list)  # the state before
    weights: list[Array] = field(default_factory=list)
    added: list[Array] = field(default_factory=list)  # to the figures
    opens: list[bool] = field(default_factory=list)  # a new segment


def figures_of_all(
    links: UnitLinks, asked_for: Sequence[tuple[int, Preference]], wires: Sequence[ShardWire]
) -> list[StageFigures]:
    """For each number of shards and preference the figures of all stages, in a triangle's order."""
    wire = ShardWire(np.array([one.bytes_per_s for one in wires]), np.array([one.latency_s for one in wires]))
    shards = np.array([count for count, _ in asked_for])
    of_second, of_byte = np.array([COUNTS[preference] for _, preference in asked_for]).T
    asked = _Asked(links, shards, wire, (of_second, of_byte))
    units = len(links.costs.units)
    triangle = Triangle(units)
    found = np.zeros((FIGURES, len(shards), triangle.size))
    weight = np.full((3, len(shards), units), np.inf)
    figures = np.zeros((3, len(shards), units, FIGURES + 1))
    for at in range(units):
        weight[0, :, at] = 0.0
        now = (slice(None), slice(None), slice(0, at + 1))
        weight[now], figures[now] = _after_unit(asked, at, weight[now], figures[now])
        ended, whole, goes_on = _finished(asked, at, weight[now], figures[now])
        found[:, :, triangle.ending(at + 1)] = np.moveaxis(whole[..., :FIGURES], 2, 0)
        if not links.flows[at]:
            weight[now] = np.inf
            weight[0, :, : at + 1], figures[0, :, : at + 1] = ended, goes_on
    return _with_messages(links, triangle, found)


def _after_unit(asked: _Asked, at: int, weight: Array, figures: Array) -> tuple[Array, Array]:
    new_weight, new_figures = np.full_like(weight, np.inf), np.zeros_like(figures)
    for target, ways in _candidates(asked, at).items():
        sources = np.array(ways.sources)
        total = weight[sources] + np.array(ways.weights)[:, :, None]
        taken = total.argmin(0)
        rows, columns = np.indices(taken.shape, sparse=True)
        new_weight[target] = total[taken, rows, columns]
        made = figures[sources[taken], rows, columns]
        added = np.array(ways.added)[taken, rows]
        made[..., :SUMS] += added[..., :SUMS]
        made[..., OPEN] = np.where(np.array(ways.opens)[taken], 0.0, made[..., OPEN]) + added[..., SAVED]
        made[..., LARGEST] = np.maximum(made[..., LARGEST], made[..., OPEN] + added[..., PEAK])
        made[..., PEAK] = np.maximum(made[..., PEAK], made[..., SAVED] + added[..., PEAK])
        made[..., FIXED] = np.maximum(made[..., FIXED], added[..., FIXED])
        new_figures[target] = made
    return new_weight, new_figures


def _candidates(asked: _Asked, at: int) -> dict[int, _Candidates]:
    links, shards, found = asked.links, asked.shards, dict[int, _Candidates]()
    unit = links.costs.units[at]
    ways = unit.ways if at not in links.tied else ()
    for way in (WHOLE, *(way for way in ways if way.name != WHOLE.name)):
        possible = np.array([way is WHOLE or (count > 1 and fits(way, int(count))) for count in shards])
        if not possible.any():
            continue
        for source, state in enumerate(STATES):
            made = move(links, unit, state, way, shards)
            if made is None or (at and not links.flows[at - 1] and source):
                continue
            weight = weigh(unit, made, shards, asked.wire, links.costs.samples, asked.counts)
            one = found.setdefault(STATES.index(made.gives), _Candidates())
            one.sources.append(source)
            one.weights.append(np.where(possible, weight, np.inf))
            one.added.append(asked.table(unit_figures(links, unit, made, shards, made.before)))
            one.opens.append(bool(made.before))
    return found


def _finished(asked: _Asked, at: int, weight: Array, figures: Array) -> tuple[Array, Array, Array]:
    """What stages that end here weigh and cost, and what those cost that go on with a whole value."""
    links, of_second = asked.links, asked.counts[0]
    closing = [links.finish(at, state, asked.shards) for state in STATES]
    seconds = [exchange_seconds(one, asked.wire, links.costs.samples) * of_second for one in closing]
    sent = np.stack([asked.table(exchanged(one)) for one in closing])
    kept = asked.table([sum(kept_bytes(e, links, asked.shards) for e in one) for one in closing]).T
    total = weight + np.stack(seconds)[:, :, None]
    taken = total.argmin(0)
    rows, columns = np.indices(taken.shape, sparse=True)
    whole = figures[taken, rows, columns]
    whole[..., 6:8] += sent[taken, rows]
    goes_on = whole.copy()
    goes_on[..., 9] += kept[taken, rows]
    goes_on[..., OPEN] = np.where(np.array([bool(one) for one in closing])[taken], 0.0, whole[..., OPEN])
    return total[taken, rows, columns], whole, goes_on


def _with_messages(links: UnitLinks, triangle: Triangle, found: Array) -> list[StageFigures]:
    """Adds what depends on the stage's ends alone: messages, and parameters that are tied."""
    units = triangle.units
    sent = np.zeros((5, units, units + 1))
    for name, readers in links.read_at.items():
        value, maker = links.values[name], links.maker[name]
        for row, size in ((0, value.bytes), (1, value.bytes if value.has_gradient else 0.0)):
            before = maker
            for reader in (at for at in readers if at > maker):
                sent[row, before + 1 : reader + 1, reader + 1 :] += size
                before = reader
            sent[2 + row, : maker + 1, maker + 1 : before + 1] += size
        for reader in (at for at in readers if at > maker and value.has_gradient):
            sent[4, : maker + 1, maker + 1 : reader + 1] += value.bytes
    messages = [triangle.flat(one) for one in sent]
    twice, tied = _ties(links, triangle)
    found[9] += messages[0]
    found[11:14] -= twice[:, None, :]
    beside = (*messages, tied, _held(links, triangle))
    return [StageFigures(*(*found[:, row], *beside)) for row in range(found.shape[1])]


def _held(links: UnitLinks, triangle: Triangle) -> Array:
    """held_bytes of all stages."""
    units = triangle.units
    found = np.zeros((units, units + 1))
    for name, readers in links.read_at.items():
        value, maker = links.values[name], links.maker[name]
        if value.keeper == UNKNOWN:
            continue
        here = np.zeros((units, units + 1), bool)
        for reader in (at for at in readers if at > maker):
            here[maker + 1 : reader + 1, reader + 1 :] = True
        if name in links.costs.outputs:
            here[:, units] = True
        if value.keeper >= 0:
            here[: value.keeper + 1, value.keeper + 1 :] = False
        found += value.bytes * here
    trained = [at for at, unit in enumerate(links.costs.units) if unit.trained_bytes]
    found[:, : trained[0] + 1 if trained else units + 1] = 0.0
    return triangle.flat(found)


def _ties(links: UnitLinks, triangle: Triangle) -> tuple[Array, Array]:
    units, costs = triangle.units, links.costs
    twice, tied = np.zeros((3, units, units + 1)), np.zeros((units, units + 1))
    for (_, size), holders in zip(costs.ties, costs.tied_units, strict=True):
        held = np.zeros((units, units + 1), np.int64)
        for at in sorted(holders):
            unit = costs.units[at]
            trained = size if unit.trained_bytes else 0
            again = np.zeros_like(held, dtype=bool)
            again[: at + 1, at + 1 :] = held[: at + 1, at + 1 :] > 0
            twice += np.array([size, trained, round(trained * unit.state_per_byte)])[:, None, None] * again
            held[: at + 1, at + 1 :] += 1
        tied += size * ((held > 0) & (held < len(holders)))
    return np.stack([triangle.flat(one) for one in twice]), triangle.flat(tied)
