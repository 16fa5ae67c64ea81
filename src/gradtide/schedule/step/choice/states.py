"""Whole, sliced or partial: what each way of cutting a unit needs, gives, and costs in exchanges.

Between two units that follow each other alone (the second reads what the first makes, and nothing else does), a value
may be in any state. Any other value is whole: what several units read, what a unit reads beside others, what leaves.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from gradtide.schedule.step.costs import CutWay, ModelCosts, State, UnitCost, Value
from gradtide.schedule.step.shape import ExchangeKind, ExchangeShape, MomentBytes, Seconds

__all__ = ["STATES", "WHOLE", "Move", "ShardCount", "UnitLinks", "exchanges", "fits", "kept_bytes", "move", "ways_of"]

ShardCount = Any  # an int; or an array of them, and then all bytes that come of it are arrays too

STATES: tuple[State, ...] = ("whole", "sliced", "partial")
WHOLE = CutWay("whole", "whole", "whole", computes=False, holds=False)


@dataclass(frozen=True, slots=True)
class Move:
    """What a unit does when it is cut in one way, from one state of what it reads."""

    before: tuple[ExchangeShape, ...]
    computes: bool  # a shard computes a part
    holds: bool  # a shard holds a part of the parameters
    sliced: bool  # what it reads, and so keeps for backward, is sliced
    gives: State


class UnitLinks:
    """Who reads what of a model's units."""

    def __init__(self, costs: ModelCosts) -> None:
        self.costs = costs = _without_frozen(costs)
        self.values = {value.name: value for value in costs.values}
        readers = Counter(name for unit in costs.units for name in set(unit.reads))
        self.readers = readers
        self.read = {name for name, count in readers.items() if count} | set(costs.outputs)
        self.maker = {name: at for at, unit in enumerate(costs.units) for name in unit.writes}
        self.read_at = {name: self._read_at(name) for name in self.maker}
        self.flows = tuple(self._flows(at) for at in range(len(costs.units)))
        self.tied = {unit for units in costs.tied_units for unit in units}

    def _flows(self, at: int) -> bool:
        """Whether the next unit reads what this one makes, both nothing else, and nobody else reads it."""
        units = self.costs.units
        if at + 1 == len(units) or len(units[at].writes) != 1:
            return False
        (name,) = units[at].writes
        return units[at + 1].reads == (name,) and self.readers[name] == 1 and name not in self.costs.outputs

    def _read_at(self, name: str) -> tuple[int, ...]:
        """The units that read a value, in order. The last stage reads the model's outputs, for the loss."""
        found = {at for at, unit in enumerate(self.costs.units) if name in unit.reads}
        if name in self.costs.outputs:
            found.add(len(self.costs.units) - 1)
        return tuple(sorted(found))

    def leaving(self, at: int) -> list[Value]:
        """What the unit makes that somebody reads."""
        return [self.values[name] for name in self.costs.units[at].writes if name in self.read]

    def finish(self, at: int, state: State, shards: ShardCount) -> tuple[ExchangeShape, ...]:
        """What makes the unit's values whole again."""
        return tuple(one for value in self.leaving(at) for one in exchanges(state, WHOLE, value, shards) or ())


def _without_frozen(costs: ModelCosts) -> ModelCosts:
    """Units before the first one that is trained keep nothing and have no backward."""
    trained = [at for at, unit in enumerate(costs.units) if unit.trained_bytes]
    first = trained[0] if trained else len(costs.units)
    frozen = tuple(_frozen(unit) for unit in costs.units[:first])
    return replace(costs, units=(*frozen, *costs.units[first:])) if frozen else costs


def _frozen(unit: UnitCost) -> UnitCost:
    made = unit.forward_moment
    passing = MomentBytes(made.fixed, made.per_sample + unit.saved_bytes) if made != MomentBytes() else made
    return replace(unit, backward=Seconds(), saved_bytes=0.0, forward_moment=passing, backward_moment=MomentBytes())


def ways_of(links: UnitLinks, at: int, shards: int) -> tuple[CutWay, ...]:
    """The ways that a unit can be cut into so many shards. One with tied parameters is not cut."""
    unit = links.costs.units[at]
    if shards == 1 or at in links.tied:
        return (WHOLE,)
    return (WHOLE, *(way for way in unit.ways if way.name != "whole" and fits(way, shards)))


def fits(way: CutWay, shards: int) -> bool:
    return shards <= way.most and (not way.at or shards in way.at)


def move(links: UnitLinks, unit: UnitCost, state: State, way: CutWay, shards: ShardCount) -> Move | None:
    """What this way does with a unit that reads a value in this state; None where it can't."""
    before: list[ExchangeShape] = []
    for name in unit.reads:
        found = exchanges(state, way, links.values[name], shards)
        if found is None:
            return None
        before += found
    kept: State = "whole" if state == "partial" else state
    needs = kept if way.needs == "any" else way.needs
    whole = way.needs == "any" and needs == "whole"  # every shard does all of it
    gives = needs if way.gives == "any" else way.gives
    return Move(tuple(before), way.computes and not whole, way.holds and not whole, needs == "sliced", gives)


def exchanges(state: State, way: CutWay, value: Value, shards: ShardCount) -> tuple[ExchangeShape, ...] | None:
    """What brings a value from its state to the one that a way needs, in order; None where nothing does.

    Bytes are what each shard sends: of a gather (k - 1)/k of the value, of a sum twice that, as a ring does.
    """
    part = (shards - 1) / shards * value.bytes
    back = part if value.has_gradient else 0.0
    if way.needs == "partial":
        return () if state == "partial" else None
    found = []
    if state == "partial":  # also where any state will do: few operations may be applied to the parts of a sum
        found.append(ExchangeShape("sum", value.name, 2 * part, 0.0))
        state = "whole"
    needs = state if way.needs == "any" else way.needs
    if needs == "whole" and state == "sliced":
        kind: ExchangeKind = "gather" if way.gradient == "partial" else "collect"
        found.append(ExchangeShape(kind, value.name, part, back if kind == "gather" else 0.0))
    elif needs == "whole" and way.gradient == "partial" and value.has_gradient:
        found.append(ExchangeShape("spread", value.name, 0.0, 2 * back))
    elif needs == "sliced" and state == "whole":
        found.append(ExchangeShape("slice", value.name, 0.0, back))
    if needs == "sliced" and way.halo_bytes:
        halo = way.halo_bytes
        found.append(ExchangeShape("halo", value.name, halo, halo if value.has_gradient else 0.0))
    return tuple(found)


def kept_bytes(one: ExchangeShape, links: UnitLinks, shards: ShardCount) -> Any:
    """Of a sample: what an exchange brings into the segment after it, which keeps it if the rest is computed again."""
    if one.kind == "halo":
        return one.forward_bytes
    return links.values[one.value].bytes / (shards if one.kind == "slice" else 1)
