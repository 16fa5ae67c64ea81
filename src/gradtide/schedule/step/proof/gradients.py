"""What is added up: gradients of one micro-batch after the other, sums over devices, the norm; then updates."""

import itertools
from collections.abc import Iterator

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build.finish import stages_of, sums_of
from gradtide.schedule.step.model import Task
from gradtide.schedule.step.proof.coverage import Spans
from gradtide.schedule.step.proof.index import Index
from gradtide.schedule.step.proof.words import who

__all__ = ["gradient_pairs"]

Pair = tuple[int, int]


def gradient_pairs(index: Index, spans: Spans) -> Iterator[Pair]:
    """(earlier, later) for all that is added up; who is missing, twice or wrong is refused."""
    adding = _adding(index, spans)
    for segments in adding.values():
        for tasks in segments:  # adding to one place, one after the other
            yield from ((a.id, b.id) for a, b in itertools.pairwise(tasks))
    yield from _sums(index, adding)
    yield from _ends(index, adding)


def _adding(index: Index, spans: Spans) -> dict[tuple[int, int], list[list[Task]]]:
    """(stage, device) -> for each segment, the tasks that add to gradients of its parameters, in order."""
    found: dict[tuple[int, int], list[list[Task]]] = {}
    for at, stage in enumerate(index.shape.stages):
        for place, device in enumerate(stage.devices) if stage.trained else ():
            micros = [micro for s, copy, micro in spans if s == at and copy == place // stage.shards]
            found[at, device] = []
            for segment in range(len(stage.segments)):
                halves = (index.backwards(at, segment, micro, device) for micro in micros)
                found[at, device].append(sorted((half[1] for half in halves if half), key=lambda task: task.id))
    return found


def _last(adding: dict[tuple[int, int], list[list[Task]]], stage: int, device: int) -> list[int]:
    return [tasks[-1].id for tasks in adding.get((stage, device), []) if tasks]


def _sums(index: Index, adding: dict[tuple[int, int], list[list[Task]]]) -> Iterator[Pair]:
    wanted = sums_of(index.shape)
    if index.plan.sums != wanted:
        raise ScheduleError(f"the step lists {len(index.plan.sums)} sums, but its stages and ties need {len(wanted)}")
    for number, summed in enumerate(wanted):
        task = index.sums.get(number)
        what = f"tie {index.shape.ties[summed.tie].name}" if summed.tie >= 0 else f"stage {summed.stage}"
        if task is None:
            raise ScheduleError(f"sum {number} ({what}, shard {summed.shard}) is missing: copies would differ")
        if task.devices != summed.devices or task.bytes != summed.bytes:
            raise ScheduleError(f"{who(task)}: must be of {summed.bytes} bytes on devices {summed.devices}")
        for device in summed.devices:
            for stage in stages_of(index.shape, summed):
                yield from ((earlier, task.id) for earlier in _last(adding, stage, device))
    if len(index.sums) > len(wanted):
        extra = next(task for number, task in index.sums.items() if not 0 <= number < len(wanted))
        raise ScheduleError(f"{who(extra)}: nobody needs it; leave it out")


def _ends(index: Index, adding: dict[tuple[int, int], list[list[Task]]]) -> Iterator[Pair]:
    """The norm waits for all gradients, an update for those of its device, or for the norm."""
    devices, norm = range(len(index.plan.devices)), _norm(index)
    for device in devices:
        mine = [at for at, stage in enumerate(index.shape.stages) if device in stage.devices and stage.gradient_bytes]
        update = index.updates.get(device)
        if (update is None) != (not mine):
            told = f"{who(update)}: its stages have nothing to update" if update else f"device {device} has no update"
            raise ScheduleError(told)
        ready = [earlier for at in mine for earlier in _last(adding, at, device)]
        ready += [task.id for task in index.sums.values() if device in task.devices]
        for after in (norm, update):
            if after is not None:
                yield from ((earlier, after.id) for earlier in ready)
        if norm is not None and update is not None:
            yield norm.id, update.id


def _norm(index: Index) -> Task | None:
    wanted = int(index.shape.clip)
    if len(index.norms) != wanted:
        raise ScheduleError(f"the step needs {wanted} norms of its gradients, but has {len(index.norms)}")
    if wanted and index.norms[0].devices != tuple(range(len(index.plan.devices))):
        raise ScheduleError(f"{who(index.norms[0])}: all devices take part in the norm, in order")
    return index.norms[0] if wanted else None
