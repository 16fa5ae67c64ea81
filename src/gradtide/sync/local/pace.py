"""How fast a worker computes, and how many steps it takes by itself beside the fastest one."""

import statistics
import time
from collections.abc import Callable

__all__ = ["Pace", "steps_beside"]


class Pace:
    """The seconds of a worker's steps since it last met the servers: what it waits for there is not in them. Their
    median, so that an evaluation or a file that is written between two steps does not make a worker slow."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """From here on it computes."""
        self._seconds = list[float]()
        self._since = self._clock()

    def stepped(self) -> None:
        now = self._clock()
        self._seconds.append(now - self._since)
        self._since = now

    @property
    def speed(self) -> float:
        """Steps a second; 0 before the first."""
        median = statistics.median(self._seconds) if self._seconds else 0.0
        return 1.0 / median if median > 0 else 0.0


def steps_beside(every: int, own: float, fastest: float) -> int:
    """So many that it takes as long as the fastest worker does with `every`."""
    return max(1, round(every * own / fastest)) if own and fastest else every
