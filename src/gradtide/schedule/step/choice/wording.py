"""Layouts and plans in plain words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.step.layout import Layout, Stage

if TYPE_CHECKING:
    from gradtide.schedule.step.planned import SplitPlan, SplitRow

__all__ = ["SPLIT_HEADS", "explain_split", "layout_text", "split_cells"]

SPLIT_HEADS = ("layout", "time", "closed form", "× bound", "a device", "idle", "together", "busiest link")
_WIDEST = 70  # of a layout's text


def layout_text(layout: Layout) -> str:
    """conv1 to conv5: 2 copies; fc6 to fc8: 2 shards; 8 micro-batches, 1f1b."""
    stages = layout.stages
    parts = [_stage_text(layout, stage) for stage in stages]
    if len(parts) > 4:
        parts = [*parts[:2], f"{len(parts) - 3} more stages", parts[-1]]
    count = "1 micro-batch" if layout.micro_batches == 1 else f"{layout.micro_batches} micro-batches"
    order = f", {layout.order}" if len(stages) > 1 else ""
    return f"{'; '.join(parts)}; {count}{order}"


def _stage_text(layout: Layout, stage: Stage) -> str:
    names = layout.units[stage.first], layout.units[stage.last - 1]
    units = names[0] if stage.last - stage.first == 1 else f"{names[0]} to {names[1]}"
    kinds = []
    if stage.copies > 1:
        kinds.append(f"{stage.copies} copies")
    if stage.shards > 1:
        kinds.append(f"{stage.shards} shards")
    where = " of ".join(kinds) if kinds else "1 device"
    return f"{units}: {where}{', recomputed' if stage.recompute else ''}"


def split_cells(rows: "Sequence[SplitRow]", bound_seconds: float) -> list[tuple[str, ...]]:
    """Of the table that is shown: the bound last."""
    return [*map(_cells, rows), ("lower bound", short_seconds(bound_seconds), "", "1.000", "", "", "", "")]


def _cells(row: "SplitRow") -> tuple[str, ...]:
    text = row.text if row.name == row.text else f"{row.name}: {row.text}"
    text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    times = short_seconds(row.seconds), short_seconds(row.closed_form_s), f"{row.ratio:.3f}"
    memory = short_size(float(f"{row.device_bytes:.3g}"))
    return (text, *times, memory, f"{row.bubble:.0%}", str(row.synchronisations), row.busiest_link or "-")


def explain_split(plan: "SplitPlan") -> str:
    best = plan.best
    alone = next((row for row in plan.table if row.name == "copies alone"), None)
    if len(plan.devices) == 1:
        return f"{best.text}: {short_seconds(best.seconds)}. There is one device, so nothing is split"
    if alone is best:
        other = next((row for row in plan.table if not _same_stages(row, alone)), None)
        how = "fastest" if other is None or other.seconds >= alone.seconds else "as fast as anything else"
        text = f"copies alone are {how} here: {alone.text}: {short_seconds(alone.seconds)}"
        return f"{text}. Next comes {_named(other)} with {short_seconds(other.seconds)}" if other else text
    text = f"{best.text}: {short_seconds(best.seconds)}"
    if alone is None:
        return f"{text}. Copies alone: {plan.skipped.get('copies alone', 'not asked for')}"
    return f"{text}. Copies alone: {short_seconds(alone.seconds)}, {_because(plan, alone)}"


def _same_stages(row: "SplitRow", other: "SplitRow") -> bool:
    """Whether they differ in micro-batches and recomputation alone."""
    return [s.devices for s in row.layout.stages] == [s.devices for s in other.layout.stages] and all(
        a.shards == b.shards for a, b in zip(row.layout.stages, other.layout.stages, strict=True)
    )


def _named(row: "SplitRow") -> str:
    return row.text if row.name == row.text else f"{row.name} ({row.text})"


def _because(plan: "SplitPlan", alone: "SplitRow") -> str:
    """Why copies alone take longer than the best: what they do that it does not, by seconds."""
    longer = alone.seconds - plan.best.seconds
    sums_s = _sum_seconds(alone)
    heaviest = max(plan.costs.units, key=lambda unit: unit.trained_bytes)
    total = sum(unit.trained_bytes for unit in plan.costs.units)
    if sums_s - _sum_seconds(plan.best) >= longer / 2:
        whose = f"{heaviest.name}'s gradients" if heaviest.trained_bytes > total / 4 else "the gradients"
        return f"because of {whose}: {short_size(total)} of them are added up in {short_seconds(sums_s)}"
    if any(stage.recompute for stage in alone.layout.stages):
        return f"because activations must be computed again to fit into {short_size(alone.device_bytes)} a device"
    if alone.layout.micro_batches > plan.best.layout.micro_batches:
        return f"because they need {alone.layout.micro_batches} micro-batches to fit"
    return "because every device computes all layers of few samples, and updates all parameters"


def _sum_seconds(row: "SplitRow") -> float:
    """How long gradients are added up after the last backward has ended, or the whole sum if it is shorter."""
    tasks, run = row.plan.tasks, row.simulation
    sums = [task.id for task in tasks if task.kind == "sum"]
    if not sums:
        return 0.0
    return float(max(run.end_s[at] for at in sums) - min(run.start_s[at] for at in sums))
