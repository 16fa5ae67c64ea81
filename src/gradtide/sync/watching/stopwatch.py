"""How long this worker computes on its part of a batch: from when it is given to when the next is asked for, less what
it waits for others. It is told by events, as every observer."""

import time
from collections.abc import Callable

from gradtide.events import Event, GradientsSynchronised, ParametersUpdated, Waiting

__all__ = ["Stopwatch"]


class Stopwatch:
    """Runs while this worker computes."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None  # when it was started; None while it stands
        self._seconds = 0.0
        self._begun = False

    def begin(self) -> None:
        """A part is given."""
        self._begun, self._seconds, self._since = True, 0.0, self._clock()

    def end(self) -> float:
        """The next one is asked for."""
        self._stop()
        self._begun = False
        return self._seconds

    def note(self, event: Event, *, over_servers: bool) -> None:
        """Over servers a worker waits for values, too, after its gradients are with all."""
        if isinstance(event, Waiting):
            self._stop()
            return
        over = isinstance(event, ParametersUpdated) or (isinstance(event, GradientsSynchronised) and not over_servers)
        if over and self._begun and self._since is None:
            self._since = self._clock()

    def _stop(self) -> None:
        if self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None
