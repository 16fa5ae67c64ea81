"""A step's simulation as a picture, and as a timeline for ui.perfetto.dev."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradtide.schedule.explain import short_seconds
from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.predict import StepSimulation

__all__ = ["draw_step", "step_timeline", "step_title"]

Timed = tuple[Task, float, float]  # from when to when


def draw_step(plan: StepPlan, simulation: StepSimulation, path: str | Path) -> None:
    """Draws what every device does when, and what it sends to whom, to an .svg, .png or .pdf file."""
    from gradtide.draw.step import Arrow, Bar, draw_bars  # only now: most steps are never drawn

    timed = list(_timed(plan, simulation))
    arrows = [
        Arrow(t.devices[0], t.devices[1], t.back, start_s, end_s) for t, start_s, end_s in timed if t.kind == "message"
    ]
    several = len(plan.shape.micro_batches) > 1
    bars = [Bar(*fields) for device in range(len(plan.devices)) for fields in _bars(timed, device, several)]
    rows = [(name, f"{idle:.0%} idle") for name, idle in zip(plan.devices, simulation.idle, strict=True)]
    note = f"{short_seconds(simulation.seconds)} a step, {simulation.bubble:.0%} idle on average"
    if simulation.busiest_link:
        note += f"; busiest link {simulation.busiest_link}: {short_seconds(simulation.busiest_seconds)}"
    draw_bars(Path(path), rows, bars, arrows, step_title(plan), note)


def _bars(timed: Sequence[Timed], device: int, several: bool) -> list[tuple[int, str, int, str, float, float]]:
    """What a device does, as bars; a stage's segments that follow each other at once are one. Of several micro-batches
    it says which."""
    found: list[tuple[int, str, int, str, float, float]] = []
    for task, start_s, end_s in timed:
        if device not in task.devices or task.kind == "message":
            continue
        number = str(task.micro) if task.segment >= 0 and several else ""
        bar = (device, task.kind, task.stage, number, start_s, end_s)
        if found and found[-1][:4] == bar[:4] and start_s - found[-1][5] <= 1e-9 * start_s:
            bar = (*bar[:4], found.pop()[4], end_s)
        found.append(bar)
    return found


def step_timeline(plan: StepPlan, simulation: StepSimulation, path: str | Path) -> None:
    """Writes the same as JSON for ui.perfetto.dev: a row for each device's computing, and for each pair's messages."""
    from gradtide.draw.timeline import Transfer, write_timeline

    transfers = []
    for task, start_s, end_s in _timed(plan, simulation):
        names = [plan.devices[device] for device in task.devices]
        what = "sums" if task.kind == "sum" else "computes"
        rows = [(names[0], names[1])] if task.kind == "message" else [(name, what) for name in names]
        transfers.append(Transfer(_label(task), rows, start_s, end_s))
    write_timeline(Path(path), transfers, step_title(plan))


def step_title(plan: StepPlan) -> str:
    """1f1b: 3 stages on 4 devices, 8 micro-batches of 256 samples."""
    shape = plan.shape
    sizes = sorted(set(shape.micro_batches))
    each = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    stages, devices, micros = len(shape.stages), len(plan.devices), len(shape.micro_batches)
    counts = f"{_count(stages, 'stage')} on {_count(devices, 'device')}, {_count(micros, 'micro-batch', 'es')}"
    return f"{shape.order}: {counts} of {each} sample{'' if sizes == [1] else 's'}"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _label(task: Task) -> str:
    place = f" stage {task.stage}" if task.stage >= 0 else ""
    when = f" micro-batch {task.micro}" if task.micro >= 0 else ""
    return f"{task.kind}{' back' if task.back else ''}{place}{when} (task {task.id})"


def _timed(plan: StepPlan, simulation: StepSimulation) -> Iterator[Timed]:
    for task, start_s, end_s in zip(plan.tasks, simulation.start_s, simulation.end_s, strict=True):
        yield task, float(start_s), float(end_s)
