"""How the units of a stage are cut: as its layout says, or by default."""

import math
from collections.abc import Sequence
from dataclasses import replace

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.placing import Chosen, StageWalk
from gradtide.parallel.split.layers import LayerPart, LayerWay, Slices, layer_ways
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.costs import CutWay
from gradtide.schedule.step.layout import Stage

__all__ = ["chosen_ways", "default_ways", "ways_of"]


def ways_of(unit: Unit, chain: Chain, shape: Sequence[int] = (), element_bytes: int = 4) -> tuple[CutWay, ...]:
    """The ways to cut a unit besides whole, for a planner; `shape`, of a sample of what it reads, tells a halo's bytes.

    A unit whose way needs "any" state does all of a whole value and a part of a sliced one, and need not be named in
    a stage's ways.
    """
    found = []
    for way, kind in _ways(unit).values():
        rows = kind.halo(unit.module)
        if rows and shape:
            row_bytes = math.prod(shape[1:]) * element_bytes
            way = replace(way, halo_bytes=float(rows * row_bytes), most=max(1, shape[0] // rows))
        found.append(way)
    return tuple(found)


def _ways(unit: Unit) -> dict[str, tuple[CutWay, LayerWay]]:
    return layer_ways(unit.module) if len(unit.writes) == 1 else {}


def default_ways(chain: Chain, stage: Stage) -> tuple[tuple[str, str], ...]:
    """A way for each unit that has one worth it: slices are read as they are where a layer can, and made where it
    can't. Parameters that several units hold stay whole."""
    chosen: dict[str, tuple[CutWay, LayerWay]] = {}
    walk = StageWalk(chain, stage, chosen)
    for unit in chain.units[stage.first : stage.last]:
        best = None if _shares(unit, chain) else _best(unit, stage.shards, walk.slices(unit))
        if best is not None:
            chosen[unit.name] = best
        walk.place(unit)
    return tuple((name, way.name) for name, (way, _) in chosen.items())


def _shares(unit: Unit, chain: Chain) -> bool:
    own = set(unit.parameters.values())
    return any(own.intersection(other.parameters.values()) for other in chain.units if other is not unit)


def _best(unit: Unit, shards: int, given: Slices | None) -> tuple[CutWay, LayerWay] | None:
    ways = {name: way for name, way in _ways(unit).items() if _fits(way[0], shards)}
    part = LayerPart(0, shards, given)
    for way, kind in ways.values():
        reads_them = way.needs == "sliced" and given is not None and kind.reads(unit.module, part) == given
        if way.needs == "any" or reads_them:
            return way, kind
    return next((found for found in ways.values() if found[0].needs == "whole" and found[0].gives == "sliced"), None)


def chosen_ways(chain: Chain, stage: Stage) -> Chosen:
    """The way of each unit of the stage that is cut. One that only follows what it reads need not be named."""
    if stage.shards == 1:
        return {}
    named = dict(stage.ways or default_ways(chain, stage))
    units = {unit.name: unit for unit in chain.units[stage.first : stage.last]}
    for name in named:
        if name not in units:
            raise ConfigError(
                f"a way to cut {name!r} is given, but the stage has no such unit; it has {', '.join(units)}"
            )
    chosen: dict[str, tuple[CutWay, LayerWay]] = {}
    for name, unit in units.items():
        ways = _ways(unit)
        following = [way for way, _ in ways.values() if way.needs == "any" and _fits(way, stage.shards)]
        wanted = named.get(name, following[0].name if following else "whole")
        if wanted != "whole":
            chosen[name] = _checked(unit, wanted, ways, stage.shards)
    return chosen


def _checked(unit: Unit, wanted: str, ways: dict[str, tuple[CutWay, LayerWay]], shards: int) -> tuple[CutWay, LayerWay]:
    kind = type(unit.module).__name__
    if wanted not in ways:
        known = ", ".join([*ways, "whole"])
        raise ConfigError(f"{unit.name} ({kind}) can't be cut by {wanted!r}; choose one of: {known}")
    way = ways[wanted][0]
    if not _fits(way, shards):
        fitting = f"{way.most} shards at most" if shards > way.most else f"one of {', '.join(map(str, way.at))} shards"
        raise ConfigError(f"{unit.name} ({kind}) can be cut by {wanted} into {fitting}, not {shards}")
    return ways[wanted]


def _fits(way: CutWay, shards: int) -> bool:
    return shards <= way.most and (not way.at or shards in way.at)
