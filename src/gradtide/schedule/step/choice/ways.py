"""choose_ways: the ways of a stage's units that take the least time, or the fewest bytes, by dynamic programming."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gradtide.schedule.step.choice.states import STATES, Move, ShardCount, UnitLinks, move, ways_of
from gradtide.schedule.step.costs import CutWay, ModelCosts, State, UnitCost
from gradtide.schedule.step.shape import ExchangeShape

__all__ = ["COUNTS", "Preference", "ShardWire", "choose_ways", "exchange_seconds", "weigh"]

Preference = Literal["fast", "small"]  # the least seconds, or the fewest bytes on a device

# What a second and a byte count. Each breaks the other's ties: a nanosecond a gigabyte, and a byte an hour.
COUNTS = {"fast": (1.0, 1e-18), "small": (1 / 3600, 1.0)}


@dataclass(frozen=True, slots=True)
class ShardWire:
    """The wire that the shards of a copy exchange over."""

    bytes_per_s: Any  # a number; or an array, one for each number of shards
    latency_s: Any = 0.0


def exchange_seconds(found: tuple[ExchangeShape, ...], wire: ShardWire, samples: float) -> Any:
    """How long these take, there and back."""
    seconds: Any = 0.0
    for one in found:
        for size in (one.forward_bytes, one.backward_bytes):
            seconds += np.where(np.greater(size, 0), wire.latency_s + size * samples / wire.bytes_per_s, 0.0)
    return seconds


def weigh(
    unit: UnitCost, made: Move, shards: ShardCount, wire: ShardWire, samples: int, counts: tuple[Any, Any]
) -> Any:
    """What the search for ways adds up: the time of a whole batch, and what is kept of parameters and activations;
    `counts` is what a second and a byte count."""
    each = 1 / shards if made.computes else 1.0
    per_sample = (unit.forward.per_sample_s + unit.backward.per_sample_s) * each
    seconds = unit.forward.fixed_s + unit.backward.fixed_s + per_sample * samples
    seconds += exchange_seconds(made.before, wire, samples)
    held = unit.parameter_bytes + unit.trained_bytes * (1 + unit.state_per_byte)
    kept = held * (1 / shards if made.holds else 1.0)
    kept += unit.saved_bytes * samples * (1 / shards if made.sliced else 1.0)
    return seconds * counts[0] + kept * counts[1]


def choose_ways(
    costs: ModelCosts,
    first: int,
    last: int,
    shards: int,
    wire: ShardWire,
    preference: Preference = "fast",
    links: UnitLinks | None = None,
) -> tuple[tuple[str, str], ...]:
    """The way of each unit of a stage that has several, as Stage.ways has them: "whole" is said too.

    Exact where units follow each other in a chain; a value that several units read is whole. What enters and leaves
    the stage is whole. All is weighed for a whole batch.
    """
    if shards == 1:
        return ()
    links = links or UnitLinks(costs)
    best: dict[State, tuple[float, tuple[CutWay, ...]]] = {"whole": (0.0, ())}
    for at in range(first, last):
        best = _after_unit(links, at, best, shards, wire, preference)
        if at + 1 == last or not links.flows[at]:
            best = {"whole": _finished(links, at, best, shards, wire, preference)}
    taken = best["whole"][1]
    chosen = zip(costs.units[first:last], taken, strict=True)
    return tuple((unit.name, way.name) for unit, way in chosen if way.name != "whole" or unit.ways)


def _after_unit(
    links: UnitLinks,
    at: int,
    best: dict[State, tuple[float, tuple[CutWay, ...]]],
    shards: int,
    wire: ShardWire,
    preference: Preference,
) -> dict[State, tuple[float, tuple[CutWay, ...]]]:
    unit, after = links.costs.units[at], dict[State, tuple[float, tuple[CutWay, ...]]]()
    for way in ways_of(links, at, shards):
        for state in STATES:
            made = move(links, unit, state, way, shards) if state in best else None
            if made is None:
                continue
            weight = best[state][0] + weigh(unit, made, shards, wire, links.costs.samples, COUNTS[preference])
            if made.gives not in after or weight < after[made.gives][0]:
                after[made.gives] = (weight, (*best[state][1], way))
    return after


def _finished(
    links: UnitLinks,
    at: int,
    best: dict[State, tuple[float, tuple[CutWay, ...]]],
    shards: int,
    wire: ShardWire,
    preference: Preference,
) -> tuple[float, tuple[CutWay, ...]]:
    of_second = COUNTS[preference][0]
    ends = []
    for state in STATES:
        if state in best:
            seconds = exchange_seconds(links.finish(at, state, shards), wire, links.costs.samples)
            ends.append((best[state][0] + seconds * of_second, best[state][1]))
    return min(ends, key=lambda end: end[0])
