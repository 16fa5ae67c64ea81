"""What workers asked servers for, and when: by it a server's events find the step that they belong to."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from gradtide.events import GradientsSynchronised, PushBegan, ValuesPulled
from gradtide.observe.trace.steps import WorkerStep

__all__ = ["PushWindow", "WorkerRequests"]


@dataclass(slots=True)
class PushWindow:
    """The requests of a worker from one push to the next: those with a higher number than this."""

    sequence: int
    kept: bool  # in the trace
    left_s: float
    synchronised_s: float | None = None
    pulled_s: float | None = None


@dataclass(slots=True)
class WorkerRequests:
    """Of one worker. One that was started again counts anew: then it has another life."""

    _lives: list[list[PushWindow]] = field(default_factory=lambda: [[]])

    def note(self, step: WorkerStep, align: Callable[[float], float], *, kept: bool) -> None:
        """Every step, in order. Of those that are not kept only where they begin."""
        new: list[PushWindow] = []  # of this step
        for at_s, event in step.events:
            if isinstance(event, PushBegan):
                window = PushWindow(event.sequence, kept, align(at_s))
                self._add(window)
                new.append(window)
            elif isinstance(event, GradientsSynchronised):
                for window in new:
                    window.synchronised_s = align(at_s)
            elif isinstance(event, ValuesPulled):
                for window in new:
                    window.pulled_s = align(at_s)

    def _add(self, window: PushWindow) -> None:
        life = self._lives[-1]
        if life and window.sequence < life[-1].sequence:
            self._lives.append([window])
        elif window.kept or (life and life[-1].kept):
            life.append(window)

    def find(self, sequence: int, at_s: float) -> PushWindow | None:
        """What a request belongs to that a server saw at this moment; None: it is not in the trace."""
        for life in reversed(self._lives):
            place = bisect_left(life, sequence, key=lambda window: window.sequence) - 1
            if place >= 0 and (len(self._lives) == 1 or life[place].left_s <= at_s):
                return life[place] if life[place].kept else None
        return None
