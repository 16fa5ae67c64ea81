"""Which samples every part of the model computes: each exactly once, on one copy, forward and back."""

from gradtide.errors import ScheduleError
from gradtide.schedule.step.model import Task
from gradtide.schedule.step.proof.index import COMPUTES, Index
from gradtide.schedule.step.proof.words import who
from gradtide.schedule.step.shape import StageShape

__all__ = ["Spans", "find_spans", "tile"]

Spans = dict[tuple[int, int, int], tuple[int, int]]  # (stage, copy, micro) -> samples, first to last - 1


def find_spans(index: Index) -> Spans:
    """The samples of every copy. All its shards and segments have the same; the copies' make up the micro-batch."""
    spans: Spans = {}
    _check_places(index)
    first = 0
    for micro, samples in enumerate(index.shape.micro_batches):
        for at, stage in enumerate(index.shape.stages):
            for copy in range(stage.copies):
                span = _span(index, at, stage, copy, micro)
                if span is not None:
                    spans[at, copy, micro] = span
            found = [spans[at, copy, micro] for copy in range(stage.copies) if (at, copy, micro) in spans]
            tile(found, (first, first + samples), f"stage {at}, micro-batch {micro}")
        first += samples
    return spans


def tile(found: list[tuple[int, int]], wanted: tuple[int, int], what: str) -> None:
    """Whether these samples are all the wanted ones, each once."""
    at = wanted[0]
    for first, last in sorted(found):
        if first != at:
            fault = f"lacks samples {at} to {first - 1}" if first > at else f"counts sample {first} twice"
            raise ScheduleError(f"{what}: {fault}")
        at = last
    if at != wanted[1]:
        fault = f"lacks samples {at} to {wanted[1] - 1}" if at < wanted[1] else f"has sample {wanted[1]}, not its own"
        raise ScheduleError(f"{what}: {fault}")


def _check_places(index: Index) -> None:
    for (_, stage, segment, _, device), task in index.computes.items():
        shape = index.shape.stages[stage]
        if device not in shape.devices or not 0 <= segment < len(shape.segments):
            raise ScheduleError(
                f"{who(task)}: the stage has devices {shape.devices} and {len(shape.segments)} segments"
            )
        if task.kind != "forward" and not shape.trained:
            raise ScheduleError(f"{who(task)}: the stage is not trained and has no gradients")
        if task.first >= task.last:
            raise ScheduleError(f"{who(task)}: computes no sample; leave it out")


def _span(index: Index, at: int, stage: StageShape, copy: int, micro: int) -> tuple[int, int] | None:
    """The samples of a copy, or None where it has none: then it must have no task at all."""
    tasks: list[Task] = []
    absent: list[str] = []
    for shard in range(stage.shards):
        device = stage.device(copy, shard)
        for segment in range(len(stage.segments)):
            place = f"stage {at} segment {segment}, micro-batch {micro}, on device {device}"
            forward = index.computes.get(("forward", at, segment, micro, device))
            _note(tasks, absent, (forward,) if forward else None, f"forward of {place}")
            if stage.trained:
                _note(tasks, absent, index.backwards(at, segment, micro, device), f"backward of {place}")
            _check_halves(index, at, segment, micro, device)
    if not tasks:
        return None
    span = tasks[0].first, tasks[0].last
    if absent:
        raise ScheduleError(f"{absent[0]} is missing: samples {span[0]} to {span[1] - 1} would not count")
    for task in tasks:
        if (task.first, task.last) != span:
            raise ScheduleError(
                f"{who(task)}: has samples {task.first} to {task.last - 1}, but {who(tasks[0])} has "
                f"{span[0]} to {span[1] - 1}"
            )
    return span


def _note(tasks: list[Task], absent: list[str], found: tuple[Task, ...] | None, what: str) -> None:
    if found is None:
        absent.append(what)
    else:
        tasks.extend(found)


def _check_halves(index: Index, stage: int, segment: int, micro: int, device: int) -> None:
    """Backward is whole or in two: not both, and not half of it."""
    kinds = [kind for kind in COMPUTES[1:] if (kind, stage, segment, micro, device) in index.computes]
    if kinds not in ([], ["backward"], ["inputs", "weights"]):
        task = index.computes[kinds[0], stage, segment, micro, device]
        raise ScheduleError(f"{who(task)}: backward must be one task, or inputs and weights, not {', '.join(kinds)}")
