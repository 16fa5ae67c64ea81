"""shape_of: a layout and what its model costs become what a step is made of."""

from dataclasses import dataclass

from gradtide.errors import ScheduleError
from gradtide.fair_share import even_shares
from gradtide.schedule.step.choice.states import WHOLE, Move, UnitLinks, kept_bytes, move, ways_of
from gradtide.schedule.step.costs import UNKNOWN, CutWay, ModelCosts, State, UnitCost
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.shape import (
    Crossing,
    ExchangeShape,
    MomentBytes,
    Seconds,
    SegmentShape,
    StageShape,
    StepShape,
    Tie,
    UnitMemory,
)

__all__ = ["PlacedUnit", "brought_bytes", "check_layout", "held_bytes", "shape_of", "walk_stage"]


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """A unit of a stage as each of its shards runs it."""

    number: int
    unit: UnitCost
    before: tuple[ExchangeShape, ...]  # what opens a new segment, if there is any
    move: Move


def shape_of(
    layout: Layout,
    costs: ModelCosts,
    samples: int | None = None,
    *,
    clip: bool = False,
    speeds: tuple[float, ...] = (),
    links: UnitLinks | None = None,
) -> StepShape:
    """The step of a batch of so many samples (the profile's, if left out)."""
    links = links or UnitLinks(costs)
    check_layout(layout, costs)
    batch = costs.samples if samples is None else samples
    return StepShape(
        tuple(_stage_shape(links, stage) for stage in layout.stages),
        _crossings(links, layout),
        even_shares(batch, layout.micro_batches),
        layout.order,
        _ties(costs, layout),
        clip,
        speeds,
        costs.overheads,
    )


def check_layout(layout: Layout, costs: ModelCosts) -> None:
    """Whether this is a layout of this model: its units one after the other, each once."""
    if layout.units != tuple(unit.name for unit in costs.units):
        raise ScheduleError("the layout is of another model: its units have other names; plan this one with split()")
    at = 0
    for stage in layout.stages:
        if stage.first != at or stage.last <= at:
            raise ScheduleError(f"a stage begins at unit {stage.first}, but the one before it ends at {at}")
        if stage.shards < 1 or not stage.devices or len(stage.devices) % stage.shards:
            raise ScheduleError(f"{len(stage.devices)} devices can't be copies of {stage.shards} shards each")
        at = stage.last
    if at != len(costs.units):
        raise ScheduleError(f"the last stage ends at unit {at}, but the model has {len(costs.units)}")
    if layout.micro_batches < 1:
        raise ScheduleError(f"a batch has one micro-batch or more, not {layout.micro_batches}")


def walk_stage(links: UnitLinks, stage: Stage) -> tuple[list[PlacedUnit], tuple[ExchangeShape, ...]]:
    """The units of a stage as its ways cut them, and what closes it."""
    ways, placed = _ways(links, stage), list[PlacedUnit]()
    state: State = "whole"
    pending: tuple[ExchangeShape, ...] = ()
    for at in range(stage.first, stage.last):
        unit = links.costs.units[at]
        made = move(links, unit, state, ways[at - stage.first], stage.shards)
        if made is None:
            raise ScheduleError(
                f"{unit.name} can't be cut by {ways[at - stage.first].name!r}: it reads a {state} value"
            )
        placed.append(PlacedUnit(at, unit, (*pending, *made.before), made))
        flowing = links.flows[at] and at + 1 < stage.last
        pending = () if flowing else links.finish(at, made.gives, stage.shards)
        state = made.gives if flowing else "whole"
    return placed, pending


def _ways(links: UnitLinks, stage: Stage) -> list[CutWay]:
    """As the stage names them. A unit that is not named follows what it reads, if it can, and is whole otherwise."""
    asked, found = dict(stage.ways), []
    for at in range(stage.first, stage.last):
        known = {way.name: way for way in ways_of(links, at, stage.shards)}
        follows = next((way.name for way in known.values() if way.needs == "any"), WHOLE.name)
        name = asked.pop(links.costs.units[at].name, follows)
        if name not in known:
            shown = f"known are {', '.join(known)}"
            raise ScheduleError(f"{links.costs.units[at].name} has no way {name!r} for {stage.shards} shards; {shown}")
        found.append(known[name])
    if asked:
        raise ScheduleError(f"no unit {next(iter(asked))!r} is in the stage whose ways name it")
    return found


def _stage_shape(links: UnitLinks, stage: Stage) -> StageShape:
    placed, after = walk_stage(links, stage)
    pieces = _pieces(placed)
    held = [_share(one.move.holds, stage.shards) for one in placed]
    twice, twice_trained, twice_state = _held_twice(links.costs, stage)
    units = [one.unit for one in placed]
    return StageShape(
        devices=stage.devices,
        shards=stage.shards,
        segments=tuple(_segment(links, *piece, stage, first=n == 0) for n, piece in enumerate(pieces)),
        after=after,
        parameter_bytes=_sum([unit.parameter_bytes / share for unit, share in zip(units, held, strict=True)]) - twice,
        gradient_bytes=_sum([unit.trained_bytes / s for unit, s in zip(units, held, strict=True)]) - twice_trained,
        state_bytes=_sum([u.trained_bytes * u.state_per_byte / s for u, s in zip(units, held, strict=True)])
        - twice_state,
        recompute=stage.recompute,
        trained=any(unit.trained_bytes for unit in links.costs.units[: stage.last]),
        update=Seconds(sum(unit.update_s / share for unit, share in zip(units, held, strict=True))),
        update_bytes=max(-(-unit.update_bytes // share) for unit, share in zip(units, held, strict=True)),
    )


def _pieces(placed: list[PlacedUnit]) -> list[tuple[list[ExchangeShape], list[PlacedUnit]]]:
    """What becomes segments, as a stage that is cut has them: what several units read is exchanged once, as early as it
    is there, and a segment ends only where it makes what is exchanged."""
    pieces = list[tuple[list[ExchangeShape], list[PlacedUnit]]]()
    done, made = set[tuple[str, str]](), dict[str, int]()
    for one in placed:
        fresh = [exchange for exchange in one.before if (exchange.kind, exchange.value) not in done]
        done |= {(exchange.kind, exchange.value) for exchange in fresh}
        if not pieces or any(made.get(exchange.value) == len(pieces) - 1 for exchange in fresh):
            pieces.append(([], []))
        pieces[-1][0].extend(fresh)
        pieces[-1][1].append(one)
        made |= dict.fromkeys(one.unit.writes, len(pieces) - 1)
    return pieces


def _share(in_parts: bool, shards: int) -> int:
    return shards if in_parts else 1


def _sum(sizes: list[float]) -> int:
    """The largest shard's: each part that is not even is rounded up."""
    return sum(-int(-size // 1) for size in sizes)


def _held_twice(costs: ModelCosts, stage: Stage) -> tuple[int, int, int]:
    """Of tied parameters that several units of the stage hold: what was counted too often."""
    size = trained = state = 0
    for (_, one), units in zip(costs.ties, costs.tied_units, strict=True):
        here = [costs.units[at] for at in units if stage.first <= at < stage.last]
        for unit in here[1:]:
            size += one
            trained += one if unit.trained_bytes else 0
            state += round(one * unit.state_per_byte) if unit.trained_bytes else 0
    return size, trained, state


def _segment(
    links: UnitLinks, before: list[ExchangeShape], piece: list[PlacedUnit], stage: Stage, *, first: bool
) -> SegmentShape:
    parts = [_share(one.move.computes, stage.shards) for one in piece]
    sliced = [_share(one.move.sliced, stage.shards) for one in piece]
    units = list(zip([one.unit for one in piece], parts, strict=True))
    forward = [Seconds(unit.forward.fixed_s, unit.forward.per_sample_s / part) for unit, part in units]
    backward = [Seconds(unit.backward.fixed_s, unit.backward.per_sample_s / part) for unit, part in units]
    total = _added(backward)
    weights = [one.of(links.costs.samples) * unit.for_weights for one, (unit, _) in zip(backward, units, strict=True)]
    whole = total.of(links.costs.samples)
    brought = brought_bytes(links, stage.first, stage.last) if first else 0.0
    saved = sum(one.unit.saved_bytes / share for one, share in zip(piece, sliced, strict=True))
    saved += held_bytes(links, stage.first, stage.last) if first else 0.0
    return SegmentShape(
        before=tuple(before),
        forward=_added(forward),
        backward=total,
        for_weights=sum(weights) / whole if whole else 0.5,
        saved_bytes=saved,
        input_bytes=sum(kept_bytes(one, links, stage.shards) for one in before) + brought,
        brought_bytes=brought if saved else 0.0,
        units=tuple(_unit_memory(one, stage.shards) for one in piece),
    )


def _unit_memory(one: PlacedUnit, shards: int) -> UnitMemory:
    unit, part = one.unit, _share(one.move.computes, shards)
    there, back = unit.forward_moment, unit.backward_moment
    return UnitMemory(
        unit.saved_bytes / _share(one.move.sliced, shards),
        MomentBytes(there.fixed / part, there.per_sample / part),
        MomentBytes(back.fixed / part, back.per_sample / part),
        -(-unit.trained_bytes // _share(one.move.holds, shards)),
    )


def _added(seconds: list[Seconds]) -> Seconds:
    return Seconds(sum(one.fixed_s for one in seconds), sum(one.per_sample_s for one in seconds))


def brought_bytes(links: UnitLinks, first: int, last: int) -> float:
    """Of a sample: what other stages made and this one reads, which it keeps."""
    return sum(
        links.values[name].bytes
        for name, readers in links.read_at.items()
        if links.maker[name] < first and any(first <= at < last for at in readers)
    )


def held_bytes(links: UnitLinks, first: int, last: int) -> float:
    """Of a sample: what a stage has until its backward though no unit of it counts that as saved: what was brought, and
    what the model returns, until the loss."""
    if not any(unit.trained_bytes for unit in links.costs.units[:last]):
        return 0.0
    returned = links.costs.outputs if last == len(links.costs.units) else ()
    found = 0.0
    for name, readers in links.read_at.items():
        value, maker = links.values[name], links.maker[name]
        read = maker < first and any(first <= at < last for at in readers)
        if (read or name in returned) and value.keeper != UNKNOWN and not first <= value.keeper < last:
            found += value.bytes
    return found


def _crossings(links: UnitLinks, layout: Layout) -> tuple[Crossing, ...]:
    """One for each pair of stages of which one reads what the other makes, and each kind of value."""
    stage_of = [number for number, stage in enumerate(layout.stages) for _ in range(stage.first, stage.last)]
    found: dict[tuple[int, int, bool], list[str]] = {}
    for name, readers in links.read_at.items():
        source = stage_of[links.maker[name]]
        for target in sorted({stage_of[at] for at in readers} - {source}):
            found.setdefault((source, target, links.values[name].batched), []).append(name)
    crossings = []
    for (source, target, batched), names in sorted(found.items(), key=lambda item: (item[0][:2], not item[0][2])):
        values = [links.values[name] for name in names]
        forward = sum(value.bytes for value in values)
        backward = sum(value.bytes for value in values if value.has_gradient)
        crossings.append(Crossing(source, target, tuple(names), forward, backward, batched))
    return tuple(crossings)


def _ties(costs: ModelCosts, layout: Layout) -> tuple[Tie, ...]:
    found = []
    for (name, size), units in zip(costs.ties, costs.tied_units, strict=True):
        if not all(costs.units[at].trained_bytes for at in units):
            continue
        stages = tuple(n for n, s in enumerate(layout.stages) if any(s.first <= at < s.last for at in units))
        if len(stages) > 1:
            found.append(Tie(name, stages, size))
    return tuple(found)
