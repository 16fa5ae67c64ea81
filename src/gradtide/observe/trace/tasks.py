"""The tasks of a split model's step as tracks, one a device; arrows from who sends a message to who takes it."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from gradtide.events import TaskDone
from gradtide.observe.trace.pieces import FlowArrow, Track, Tracks
from gradtide.observe.trace.steps import WorkerStep

__all__ = ["TaskTracks"]

_FIRST_DEVICE = 100  # its track
_SHORTEST_S = 1e-7  # what times are written with


@dataclass(slots=True)
class _Sent:
    """Where messages of one number were sent and taken, one after the other: a step may be evaluated in between."""

    starts: list[tuple[Track, float]] = field(default_factory=list)
    ends: list[tuple[Track, float]] = field(default_factory=list)


class TaskTracks:
    """Of all workers."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._named: set[Track] = set()
        self._messages: dict[tuple[int, int], _Sent] = defaultdict(_Sent)  # by step and number

    def draw(self, pid: int, step: WorkerStep, align: Callable[[float], float]) -> None:
        """The tasks of a step that is kept."""
        for _, task in step.events:
            if isinstance(task, TaskDone):
                self._draw_task(pid, step.number, task, align)

    def _draw_task(self, pid: int, step: int, task: TaskDone, align: Callable[[float], float]) -> None:
        place, begin_s, end_s = Track(pid, _FIRST_DEVICE + task.device), align(task.begin_s), align(task.end_s)
        if place not in self._named:
            self._named.add(place)
            self._tracks.name_track(place, f"tasks of device {task.device}")
        about = {"stage": task.stage, "micro": task.micro, "waited_ms": round(task.waited_s * 1e3, 3)}
        taken_s = min(begin_s + task.waited_s, end_s - _SHORTEST_S) if task.received else begin_s
        if taken_s > begin_s:  # for messages, which are what a task begins with
            self._tracks.slice(place, "task", "wait", begin_s, taken_s, stage=task.stage, micro=task.micro)
        self._tracks.slice(place, "task", task.kind, taken_s, end_s, **about)
        if task.sent >= 0:
            self._messages[step, task.sent].starts.append((place, begin_s))
        for number in task.received:
            self._messages[step, number].ends.append((place, taken_s))

    def draw_arrows(self) -> None:
        for sent in self._messages.values():
            for (start, start_s), (end, end_s) in zip(sent.starts, sent.ends, strict=False):
                self._tracks.arrow(FlowArrow("message", start, start_s, end, end_s))
