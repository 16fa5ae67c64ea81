"""Events of the trace-event format, as plain data: slices, marks, counters, arrows, and the names of tracks."""

import itertools
from typing import Any, NamedTuple

__all__ = ["FlowArrow", "Track", "Tracks", "just_before"]

_ORDER = {"M": 0, "X": 1, "i": 2, "C": 2, "s": 3, "f": 4}  # of what happens at once: who is pointed at comes first
_NS = 1e-9


class Track(NamedTuple):
    """A track: a thread of a process, as viewers call them."""

    pid: int
    tid: int


class FlowArrow(NamedTuple):
    """From a moment on one track to a later one on another. Each end lies within a slice, and that of the start begins
    first: else Perfetto turns the arrow round. So what was waited for points at what comes after the wait."""

    name: str
    start: Track
    start_s: float
    end: Track
    end_s: float


class Tracks:
    """Collects what becomes a trace. Times are given in seconds of one clock; the trace begins with the first."""

    def __init__(self) -> None:
        self._events: list[tuple[float, dict[str, Any]]] = []  # by when
        self._names: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self.backward = 0  # arrows that would have gone back in time, by clocks that are not aligned well enough

    def __len__(self) -> int:
        return len(self._events) + len(self._names)

    def name_process(self, pid: int, name: str, rank: int) -> None:
        """`rank`: its place from the top."""
        self._names.append(_metadata("process_name", Track(pid, 0), {"name": name}))
        self._names.append(_metadata("process_sort_index", Track(pid, 0), {"sort_index": rank}))

    def name_track(self, place: Track, name: str) -> None:
        self._names.append(_metadata("thread_name", place, {"name": name}))
        self._names.append(_metadata("thread_sort_index", place, {"sort_index": place.tid}))

    def slice(self, place: Track, kind: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        """What took a while. One that took no time is left out: no viewer shows it."""
        if end_s - start_s >= _NS:
            self._add(start_s, name, "X", place, args, cat=kind, dur=end_s)

    def mark(self, place: Track, kind: str, name: str, at_s: float, **args: Any) -> None:
        self._add(at_s, name, "i", place, args, cat=kind, s="p")

    def counter(self, place: Track, name: str, unit: str, at_s: float, value: float) -> None:
        """Perfetto calls it by both, as "staleness in rounds"."""
        self._add(at_s, name, "C", place, {unit: value})

    def arrow(self, arrow: FlowArrow) -> None:
        if arrow.end_s < arrow.start_s:
            self.backward += 1
            return
        number = next(self._numbers)
        self._add(arrow.start_s, arrow.name, "s", arrow.start, {}, cat="arrow", id=number)
        self._add(arrow.end_s, arrow.name, "f", arrow.end, {}, cat="arrow", id=number, bp="e")

    def _add(self, at_s: float, name: str, ph: str, place: Track, args: dict[str, Any], **more: Any) -> None:
        event = {"name": name, "ph": ph, "pid": place.pid, "tid": place.tid, **more}
        self._events.append((at_s, event | {"args": args} if args else event))

    def finish(self) -> list[dict[str, Any]]:
        """All of it, in the order in which it happened."""
        began_s = min((at_s for at_s, _ in self._events), default=0.0)
        for at_s, event in self._events:
            start_ns = _ns(at_s - began_s)
            event["ts"] = start_ns / 1e3
            if event["ph"] == "X":  # rounded as others' begins are, so that slices still nest
                event["dur"] = (_ns(event["dur"] - began_s) - start_ns) / 1e3
        happened = [event for _, event in self._events]
        happened.sort(key=lambda event: (event["ts"], _ORDER[event["ph"]], -event.get("dur", 0.0)))
        return self._names + happened


def just_before(at_s: float) -> float:
    """Where an arrow that comes with the end of a slice still lies within it."""
    return at_s - _NS


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _metadata(what: str, place: Track, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": place.pid, "tid": place.tid, "args": args}
