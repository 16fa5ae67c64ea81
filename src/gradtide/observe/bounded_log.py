"""Events of a process that may run for months, as lines of files that don't grow with it.

server-0.jsonl         the first events; then those of every second round, of every fourth, ... as they get more
server-0.last.jsonl    the last events
server-0.before.jsonl  those before them
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gradtide.events import Event
from gradtide.observe.event_log import EventLog, read_events
from gradtide.observe.meter import Timed

__all__ = ["BoundedLog", "bounded_path", "read_bounded"]

_MOST = 50_000  # events in each file, and between two thinnings: 5 MB
_LAST, _BEFORE = ".last.jsonl", ".before.jsonl"


def bounded_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"


class BoundedLog:
    """An observer that writes. `flush` now and then."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, most: int = _MOST) -> None:
        self._path, self._clock, self._most = path, clock, most
        self._first = EventLog(path, clock, ends=(), add=True)
        self._last: EventLog | None = None
        self._kept, self._latest, self._stride = 0, 0, 1

    def observe(self, event: Event) -> None:
        number = _number(event)
        if self._stride == 1 or (number and number % self._stride == 0):
            self._first.observe(event)
            self._kept += 1
        if self._last is not None:
            self._last.observe(event)
            self._latest += 1
        if self._kept >= self._most:
            self._kept, self._stride = 0, 2 * self._stride
        if (self._stride > 1 and self._last is None) or self._latest >= self._most:
            self._turn_over()

    def _turn_over(self) -> None:
        """What was the last is what was before, and what was that goes."""
        last = self._path.with_suffix(_LAST)
        if self._last is not None:
            self._last.close()
            last.replace(self._path.with_suffix(_BEFORE))
        self._last, self._latest = EventLog(last, self._clock, ends=()), 0

    def flush(self) -> None:
        self._first.flush()
        if self._last is not None:
            self._last.flush()

    def close(self) -> None:
        self._first.close()
        if self._last is not None:
            self._last.close()


def _number(event: Event) -> int:
    """By which events are left out: of one push or round all or none. What has none (0) is among the first and last."""
    return int(getattr(event, "round", 0) or getattr(event, "sequence", 0))


def read_bounded(path: Path) -> Iterator[Timed]:
    """All that is kept, in order. A process that was started again may have added to the first file alone."""
    last = [timed for end in (_BEFORE, _LAST) for timed in read_events(path.with_suffix(end))]
    from_s, until_s = (last[0].at_s, last[-1].at_s) if last else (math.inf, math.inf)
    for timed in read_events(path):
        if last and timed.at_s >= from_s:
            yield from last
            last = []
        if not from_s <= timed.at_s <= until_s:
            yield timed
    yield from last
