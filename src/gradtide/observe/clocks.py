"""Clocks of several hosts: compared over connections that are there anyway, and aligned when events are merged.

Events are timed by time.monotonic, which all processes of a host share and no two hosts do. Who asks notes when it did
and when it was answered, who answers says what its own clock was; of some exchanges the one with the shortest round
trip is the best, and half of that trip is how far it can be wrong, however uneven the ways there and back are.
"""

import bisect
import functools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gradtide.events import ClockAligned
from gradtide.observe.meter import Timed

__all__ = ["Alignment", "ClockComparison", "aligned", "own_clock"]

_EXCHANGES = 8
_WORSE = 3.0  # times the error of the best: such an estimate is not used
Align = Callable[[float], float]


@functools.cache
def own_clock() -> str:
    """The name of the clock of this process: that of its kernel since it was started, in its time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot[:13]}-{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:  # nobody knows, so it is like no other
        return uuid.uuid4().hex


class ClockComparison:
    """Of this process's clock with another, by one exchange after the other."""

    def __init__(self, exchanges: int = _EXCHANGES, clock: str = "") -> None:
        """`exchanges`: of so many the best counts. `clock`: the name of this one."""
        self._clock, self._exchanges = clock or own_clock(), exchanges
        self._reference, self._count = "", 0
        self._best: ClockAligned | None = None

    def add(self, reference: str, sent_s: float, theirs_s: float, received_s: float) -> ClockAligned | None:
        """An exchange: sent and received by this clock, answered by the other. Returns what is known now with the first
        one and then with the last of so many; None in between, and of a clock that is this one, once that was said."""
        if reference != self._reference:
            self._reference, self._count, self._best = reference, 0, None
        self._count += 1
        if reference == self._clock:
            return ClockAligned(reference, reference, 0.0, 0.0) if self._count == 1 else None
        error_s, offset_s = (received_s - sent_s) / 2, theirs_s - (sent_s + received_s) / 2
        if self._best is None or error_s < self._best.error_s:
            self._best = ClockAligned(self._clock, reference, offset_s, error_s)
        if self._count == 1:
            return self._best
        if self._count % self._exchanges:
            return None
        best, self._best = self._best, None
        return best


class _Estimate(NamedTuple):
    at_s: float  # by the clock that is to be aligned
    offset_s: float
    error_s: float


class Alignment:
    """Times of many logs as those of one clock: that of the first log that names its own."""

    def __init__(self, logs: Mapping[str, Sequence[Timed]]) -> None:
        """By name, the events of each log among which are those that tell of clocks."""
        self._clock_of: dict[str, str] = {}
        edges: dict[str, dict[str, list[_Estimate]]] = {}
        for name, log in logs.items():
            for at_s, event in log:
                if isinstance(event, ClockAligned):
                    self._clock_of.setdefault(name, event.clock)
                    estimate = _Estimate(at_s, event.offset_s, event.error_s)
                    edges.setdefault(event.clock, {}).setdefault(event.reference, []).append(estimate)
                    back = _Estimate(at_s + event.offset_s, -event.offset_s, event.error_s)
                    edges.setdefault(event.reference, {}).setdefault(event.clock, []).append(back)
        self.root = next(iter(self._clock_of.values()), "")
        self.errors = {self.root: 0.0} if self.root else {}  # by clock: how far it can be wrong
        self._to_root: dict[str, Align] = {self.root: _as_it_is}
        self._walk(edges)

    def _walk(self, edges: Mapping[str, Mapping[str, Sequence[_Estimate]]]) -> None:
        """From the root to every clock that it was compared with, by way of others too."""
        reached = [self.root] if self.root else []
        for known in reached:
            for clock in edges.get(known, {}):
                if clock not in self._to_root:
                    steps = _good(edges[clock][known])
                    self._to_root[clock] = functools.partial(_through, _Offsets(steps), self._to_root[known])
                    self.errors[clock] = self.errors[known] + max(step.error_s for step in steps)
                    reached.append(clock)

    @property
    def is_needed(self) -> bool:
        return len(self._to_root) > 1

    def of(self, log: str) -> Align:
        """Brings a time of this log to the one clock. One that tells of no clock is taken to have that one."""
        return self._to_root.get(self._clock_of.get(log, self.root), _as_it_is)

    def describe(self) -> dict[str, float]:
        """How far each clock's times can be wrong, by its name."""
        return {clock: round(error_s, 9) for clock, error_s in self.errors.items()}


def aligned(logs: Mapping[int, Sequence[Timed]]) -> Mapping[int, Sequence[Timed]]:
    """The logs of workers, on one clock."""
    alignment = Alignment({str(rank): log for rank, log in sorted(logs.items())})
    if not alignment.is_needed:
        return logs
    return {rank: [Timed(alignment.of(str(rank))(at_s), event) for at_s, event in log] for rank, log in logs.items()}


class _Offsets:
    """Between two estimates clocks drift evenly; before the first and after the last nobody knows."""

    def __init__(self, estimates: Sequence[_Estimate]) -> None:
        self._times = [estimate.at_s for estimate in estimates]
        self._offsets = [estimate.offset_s for estimate in estimates]

    def at(self, at_s: float) -> float:
        after = bisect.bisect_right(self._times, at_s)
        if after in (0, len(self._times)):
            return self._offsets[after - 1 if after else 0]
        start_s, end_s = self._times[after - 1], self._times[after]
        share = (at_s - start_s) / (end_s - start_s)
        return self._offsets[after - 1] * (1 - share) + self._offsets[after] * share


def _good(estimates: Sequence[_Estimate]) -> list[_Estimate]:
    """In order, without those that are much worse than the best: those that met a busy moment."""
    best_s = min(estimate.error_s for estimate in estimates)
    return sorted(estimate for estimate in estimates if estimate.error_s <= _WORSE * best_s)


def _through(offsets: _Offsets, onward: Align, at_s: float) -> float:
    return onward(at_s + offsets.at(at_s))


def _as_it_is(at_s: float) -> float:
    return at_s
