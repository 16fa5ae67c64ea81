"""A worker's steps as a track: its phases, and what it saw."""

import math
from collections.abc import Callable

from gradtide.events import BatchDone, GradientsSynchronised, ValuesPulled
from gradtide.observe.describe import describe
from gradtide.observe.meter import Timed, spans
from gradtide.observe.trace.pieces import Track, Tracks
from gradtide.observe.trace.steps import WorkerStep

__all__ = ["WorkerTracks", "worker_place"]


def worker_place(rank: int) -> Track:
    return Track(rank + 1, 1)


class WorkerTracks:
    """Of one worker. `align` brings its times to the clock of the trace."""

    def __init__(self, tracks: Tracks, rank: int, align: Callable[[float], float]) -> None:
        self._tracks, self._place, self._align = tracks, worker_place(rank), align
        tracks.name_process(self._place.pid, f"worker {rank}", self._place.pid)
        tracks.name_track(self._place, "steps")

    def draw(self, step: WorkerStep) -> None:
        """All that a step shows."""
        log = step.events if step.before is None else [step.before, *step.events]
        self._draw_step(step)
        pulled = self._take_pulls(log)
        for phase, start_s, end_s in spans(log):
            if start_s in pulled:
                self._draw_phase("pull", start_s, min(pulled[start_s], end_s))
                start_s = min(pulled[start_s], end_s)
            self._draw_phase(phase, start_s, end_s)
        for timed in step.events:
            self.draw_marks(timed)

    def draw_marks(self, timed: Timed) -> None:
        """What has happened once, and stays in a trace that leaves its step out."""
        told = describe(timed.event)
        if told is not None:
            self._tracks.mark(self._place, told[0], told[1], self._align(timed.at_s))

    def _draw_step(self, step: WorkerStep) -> None:
        began_s, ended_s, done = step.began_s, step.events[-1].at_s, step.done
        if began_s is None:
            return
        seen = {} if done is None else {"epoch": done.epoch, "samples": done.samples, "loss": _plain(done.loss)}
        name = f"step {step.number}"
        self._tracks.slice(self._place, "step", name, self._align(began_s), self._align(ended_s), **seen)
        if done is not None and step.before is not None and isinstance(step.before.event, BatchDone):
            seconds = ended_s - step.before.at_s
            rate = round(done.samples / seconds, 1)
            self._tracks.counter(self._place, "samples", "per second", self._align(ended_s), rate)

    def _draw_phase(self, phase: str, start_s: float, end_s: float) -> None:
        self._tracks.slice(self._place, "phase", phase, self._align(start_s), self._align(end_s))

    def _take_pulls(self, log: list[Timed]) -> dict[float, float]:
        """Until when it pulled, by when its gradients were there: before it updates, it gets the servers' values."""
        synchronised_s, pulled = None, dict[float, float]()
        for at_s, event in log:
            if isinstance(event, GradientsSynchronised):
                synchronised_s = at_s
            elif isinstance(event, ValuesPulled):
                if synchronised_s is not None:
                    pulled[synchronised_s] = at_s
                self._tracks.counter(self._place, "staleness", "in rounds", self._align(at_s), event.staleness)
        return pulled


def _plain(number: float) -> float | str:
    """JSON knows no infinity."""
    return number if math.isfinite(number) else str(number)
