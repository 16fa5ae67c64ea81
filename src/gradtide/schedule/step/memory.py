"""How much memory each device of a step needs at its peak, and for what."""

from collections import defaultdict
from dataclasses import dataclass, field

from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.shape import SegmentShape, StageShape

__all__ = ["DeviceMemory", "memory_of"]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on one device. Activations are what is there beside all else at the worst moment, less what is missing of
    the gradients then; a lane has one slot to receive into."""

    parameters: int
    gradients: int
    state: int
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.state + self.activations + self.buffers


def memory_of(plan: StepPlan) -> tuple[DeviceMemory, ...]:
    """Of each device. Left out: the batch itself, and what is there before the first step is over."""
    runs = _runs(plan)
    buffers = _buffers(plan)
    found = []
    for device in range(len(plan.devices)):
        stages = [stage for stage in plan.shape.stages if device in stage.devices]
        gradients = sum(stage.gradient_bytes for stage in stages)
        found.append(
            DeviceMemory(
                sum(stage.parameter_bytes for stage in stages),
                gradients,
                sum(stage.state_bytes for stage in stages),
                max(0.0, runs[device].peak - gradients),
                buffers[device],
            )
        )
    return tuple(found)


@dataclass(slots=True)
class _Running:
    """A device as its tasks go by: what activations and gradients are alive, and the most of both."""

    alive: float = 0.0
    gradients: float = 0.0
    peak: float = 0.0
    begun: set[tuple[int, int]] = field(default_factory=set)  # segments that have their gradients: (stage, segment)

    def reach(self, moment: float) -> None:
        self.peak = max(self.peak, self.alive + self.gradients + moment)


def _runs(plan: StepPlan) -> list[_Running]:
    found = [_Running() for _ in plan.devices]
    for stage in plan.shape.stages:
        if not any(segment.units for segment in stage.segments):  # all that is known is the stage's own figure
            for device in stage.devices:
                found[device].gradients += stage.gradient_bytes
    for task in plan.tasks:
        if task.kind in ("forward", "backward", "inputs", "weights"):
            _compute(found[task.devices[0]], plan.shape.stages[task.stage], task)
        elif task.kind == "sum":
            for device in task.devices:  # gathered into one piece beside those that are there
                found[device].reach(task.bytes)
        elif task.kind == "update":
            stage_bytes = [s.update_bytes for s in plan.shape.stages if task.devices[0] in s.devices]
            found[task.devices[0]].reach(max(stage_bytes, default=0))
    return found


def _compute(running: _Running, stage: StageShape, task: Task) -> None:
    samples, segment = task.last - task.first, stage.segments[task.segment]
    saved, inputs = segment.saved_bytes * samples, segment.input_bytes * samples
    kept = inputs if stage.recompute else saved
    again = max(0.0, saved - segment.brought_bytes * samples) if stage.recompute else 0.0  # beside the inputs
    there = _forward_peak(segment, samples)
    match task.kind:
        case "forward" if not stage.trained:
            running.reach(max(inputs, _largest(segment, samples)))
        case "forward":
            running.reach(max(kept, (kept + _largest(segment, samples)) if stage.recompute else there))
            running.alive += kept
        case "inputs":
            running.reach(max(again, there - saved + again if stage.recompute else 0.0))
            _add_gradients(running, stage, task, samples, again)
            running.alive += again
        case "weights":
            running.alive -= kept + again
        case _:
            running.reach(max(again, there - saved + again if stage.recompute else 0.0))
            _add_gradients(running, stage, task, samples, again)
            running.alive -= kept


def _forward_peak(segment: SegmentShape, samples: int) -> float:
    """Unit after unit keeps what it keeps, and needs something beside that for a moment."""
    peak = segment.saved_bytes * samples
    kept = peak - sum(unit.saved_bytes for unit in segment.units) * samples if segment.units else peak
    for unit in segment.units:
        kept += unit.saved_bytes * samples
        peak = max(peak, kept + unit.forward.of(samples))
    return peak


def _largest(segment: SegmentShape, samples: int) -> float:
    """Where nothing is kept: the unit that needs most."""
    return max((unit.saved_bytes * samples + unit.forward.of(samples) for unit in segment.units), default=0.0)


def _add_gradients(running: _Running, stage: StageShape, task: Task, samples: int, again: float) -> None:
    """A backward lets go of what units kept, the last one's first; the first backward of all makes the gradients."""
    segment, key = stage.segments[task.segment], (task.stage, task.segment)
    first = key not in running.begun
    running.begun.add(key)
    freed = 0.0
    for unit in reversed(segment.units):
        running.reach(again - freed + unit.backward.of(samples))
        freed += unit.saved_bytes * samples
        if first:
            running.gradients += unit.gradient_bytes
        running.reach(again - freed)


def _buffers(plan: StepPlan) -> list[float]:
    """One slot a lane, as large as the largest message that it receives."""
    slots: dict[tuple[int, int, bool], float] = defaultdict(float)
    for task in plan.tasks:
        if task.kind == "message":
            lane = (task.devices[0], task.devices[1], task.back)
            slots[lane] = max(slots[lane], task.bytes)
    return [sum(size for lane, size in slots.items() if lane[1] == device) for device in range(len(plan.devices))]
