"""What a stage costs, as figures that a score is made of: numbers of one stage, or arrays of many at once."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gradtide.schedule.step.choice.states import Move, ShardCount, UnitLinks, kept_bytes
from gradtide.schedule.step.costs import UnitCost
from gradtide.schedule.step.layout import Stage
from gradtide.schedule.step.shape import ExchangeShape
from gradtide.schedule.step.shaping import brought_bytes, held_bytes, walk_stage

__all__ = ["FIGURES", "Figure", "StageFigures", "exchanged", "figures_of", "unit_figures"]

Figure = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StageFigures:
    """Of one shard. Seconds are those of a device of speed 1; bytes are of a sample, but for parameters."""

    forward_fixed_s: Figure
    forward_sample_s: Figure
    backward_fixed_s: Figure
    backward_sample_s: Figure
    weights_fixed_s: Figure  # the part of backward that is about parameters alone
    weights_sample_s: Figure
    exchanges: Figure  # how many, there and back
    exchanged_bytes: Figure
    saved_bytes: Figure
    input_bytes: Figure  # kept where the rest is computed again
    largest_bytes: Figure  # saved by the segment that saves most
    parameter_bytes: Figure
    gradient_bytes: Figure
    state_bytes: Figure
    update_s: Figure
    peak_bytes: Figure  # the most that one micro-batch has alive: what is kept, and what is there for a moment
    moment_bytes: Figure  # that are there for a moment however few the samples are
    in_forward_bytes: Figure  # what other stages made and this one reads
    in_backward_bytes: Figure  # of these, what has gradients
    out_forward_bytes: Figure  # what it makes and other stages read, counted once
    out_backward_bytes: Figure
    received_bytes: Figure  # gradients that come back, if every unit that reads what it makes is on a stage of its own
    tied_bytes: Figure  # of parameters that other stages hold too
    held_bytes: Figure  # kept until backward beside saved_bytes: what was brought, and what the model returns


FIGURES = tuple(field.name for field in fields(StageFigures))


def unit_figures(
    links: UnitLinks, unit: UnitCost, made: Move, shards: ShardCount, before: tuple[ExchangeShape, ...]
) -> list[Any]:
    """What one unit adds to the first fifteen figures, but for largest_bytes; then what it needs for a moment: of a
    sample, and however many there are."""
    part = shards if made.computes else 1
    held = shards if made.holds else 1
    saved = unit.saved_bytes / (shards if made.sliced else 1)
    weights = unit.for_weights
    count, size = exchanged(before)
    return [
        unit.forward.fixed_s,
        unit.forward.per_sample_s / part,
        unit.backward.fixed_s,
        unit.backward.per_sample_s / part,
        unit.backward.fixed_s * weights,
        unit.backward.per_sample_s / part * weights,
        count,
        size,
        saved,
        sum(kept_bytes(one, links, shards) for one in before),
        0.0,
        np.ceil(unit.parameter_bytes / held),
        np.ceil(unit.trained_bytes / held),
        np.ceil(unit.trained_bytes * unit.state_per_byte / held),
        unit.update_s / held,
        max(unit.forward_moment.per_sample, unit.backward_moment.per_sample) / part,
        np.maximum(max(unit.forward_moment.fixed, unit.backward_moment.fixed) / part, unit.update_bytes / held),
    ]


def exchanged(found: tuple[ExchangeShape, ...]) -> tuple[Any, Any]:
    """How often something is sent, there and back, and how many bytes."""
    sizes = [size for one in found for size in (one.forward_bytes, one.backward_bytes)]
    return sum(1.0 * np.greater(size, 0) for size in sizes), sum(sizes)


def figures_of(links: UnitLinks, stage: Stage) -> StageFigures:
    """The figures of one stage of a layout."""
    placed, after = walk_stage(links, stage)
    total = np.zeros(17)
    segment = largest = peak = fixed = 0.0
    for one in placed:
        figures = unit_figures(links, one.unit, one.move, stage.shards, one.before)
        total += figures
        segment = figures[8] + (0.0 if one.before else segment)
        largest = max(largest, segment + figures[15])
        peak, fixed = max(peak, total[8] + figures[15]), max(fixed, figures[16])
    total[6:8] += exchanged(after)
    total[9] += brought_bytes(links, stage.first, stage.last)
    total[10] = largest
    total[15:17] = peak, fixed
    total[11:14] -= _twice(links, stage.first, stage.last)
    sent = _messages(links, stage.first, stage.last)
    beside = (_tied(links, stage.first, stage.last), held_bytes(links, stage.first, stage.last))
    return StageFigures(*(np.float64(one) for one in (*total, *sent, *beside)))  # type: ignore[arg-type]


def _twice(links: UnitLinks, first: int, last: int) -> npt.NDArray[np.float64]:
    """Parameters, gradients and state of tied parameters that several units of the stage hold, counted too often."""
    found = np.zeros(3)
    costs = links.costs
    for (_, size), units in zip(costs.ties, costs.tied_units, strict=True):
        for unit in [costs.units[at] for at in units if first <= at < last][1:]:
            trained = size if unit.trained_bytes else 0
            found += (size, trained, round(trained * unit.state_per_byte))
    return found


def _tied(links: UnitLinks, first: int, last: int) -> float:
    costs = links.costs
    held = [sum(first <= at < last for at in units) for units in costs.tied_units]
    together = zip(costs.ties, costs.tied_units, held, strict=True)
    return float(sum(size for (_, size), units, here in together if 0 < here < len(units)))


def _messages(links: UnitLinks, first: int, last: int) -> list[float]:
    found = [0.0] * 5
    for name, readers in links.read_at.items():
        value, maker = links.values[name], links.maker[name]
        back = value.bytes if value.has_gradient else 0.0
        if maker < first and any(first <= at < last for at in readers):
            found[0] += value.bytes
            found[1] += back
        if first <= maker < last and any(at >= last for at in readers):
            found[2] += value.bytes
            found[3] += back
            found[4] += back * sum(at >= last for at in readers)
    return found
