"""Checks a trace against the trace-event format, and against what arrows and slices must be to be shown as meant.

The format is Google's "Trace Event Format" (2016, v2.1): each phase has its fields, metadata its names, slices of a
thread nest, and an arrow is two events of one name, category and id.
"""

import bisect
import json
import math
from collections import defaultdict
from typing import Any, Literal

import msgspec

__all__ = ["check_trace", "decode_trace"]


class _Any(msgspec.Struct, forbid_unknown_fields=True, tag_field="ph"):
    name: str
    pid: int
    tid: int


class _Happens(_Any):
    ts: float = msgspec.field()


class _About(msgspec.Struct, forbid_unknown_fields=True):
    name: str | None = None
    sort_index: int | None = None


class Metadata(_Any, tag="M", kw_only=True):
    name: Literal["process_name", "thread_name", "process_sort_index", "thread_sort_index"]
    args: _About


class Complete(_Happens, tag="X", kw_only=True):
    cat: str
    dur: float
    args: dict[str, Any] = {}


class Instant(_Happens, tag="i", kw_only=True):
    cat: str
    s: Literal["g", "p", "t"]
    args: dict[str, Any] = {}


class Counter(_Happens, tag="C", kw_only=True):
    args: dict[str, float]


class FlowStart(_Happens, tag="s", kw_only=True):
    cat: str
    id: int


class FlowEnd(_Happens, tag="f", kw_only=True):
    cat: str
    id: int
    bp: Literal["e"]


Traced = Metadata | Complete | Instant | Counter | FlowStart | FlowEnd


class Trace(msgspec.Struct, forbid_unknown_fields=True):
    traceEvents: list[Any]
    displayTimeUnit: Literal["ms", "ns"]
    otherData: dict[str, Any]


def decode_trace(text: str | bytes) -> list[Traced]:
    """The events of a file, each with the fields that its phase has, and no others."""
    whole = msgspec.json.decode(text, type=Trace, strict=True)
    json.loads(text, parse_constant=_refuse)
    return msgspec.convert(whole.traceEvents, list[Traced])


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def check_trace(text: str | bytes) -> list[Traced]:
    """All that can be wrong with one; returns its events."""
    events = decode_trace(text)
    happened = [event for event in events if not isinstance(event, Metadata)]
    times = [event.ts for event in happened]
    assert all(math.isfinite(ts) and ts >= 0 for ts in times)
    assert times == sorted(times), "events are in the order in which they happened"
    _check_names(events)
    tracks = _check_slices([event for event in happened if isinstance(event, Complete)])
    _check_arrows(happened, tracks)
    return events


def _check_names(events: list[Traced]) -> None:
    """Every process and track that is used has one name."""
    metadata = [event for event in events if isinstance(event, Metadata)]
    named = [(event.name, event.pid, event.tid) for event in metadata]
    assert len(named) == len({*named})
    assert all((event.args.name is None) == event.name.endswith("sort_index") for event in metadata)
    for event in events:
        if not isinstance(event, Metadata):
            assert ("process_name", event.pid, 0) in named
        if isinstance(event, Complete):
            assert ("thread_name", event.pid, event.tid) in named


def _check_slices(slices: list[Complete]) -> dict[tuple[int, int], list[Complete]]:
    """On one track one lies within another, or they have no moment in common."""
    tracks: dict[tuple[int, int], list[Complete]] = defaultdict(list)
    for item in slices:
        assert item.dur > 0
        tracks[item.pid, item.tid].append(item)
    for track in tracks.values():
        open_: list[float] = []
        for item in track:
            start, end = _ns(item.ts), _ns(item.ts) + _ns(item.dur)
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1], f"{item} leaves the slice that it begins in"
            open_.append(end)
    return tracks


def _check_arrows(happened: list[Traced], tracks: dict[tuple[int, int], list[Complete]]) -> None:
    starts = {event.id: event for event in happened if isinstance(event, FlowStart)}
    ends = {event.id: event for event in happened if isinstance(event, FlowEnd)}
    assert len(starts) == sum(isinstance(event, FlowStart) for event in happened), "an id is used once"
    assert len(ends) == sum(isinstance(event, FlowEnd) for event in happened)
    assert starts.keys() == ends.keys(), "each arrow has both its ends"
    for start, end in ((starts[number], ends[number]) for number in starts):
        assert (start.name, start.cat) == (end.name, end.cat)
        assert start.ts <= end.ts, "no arrow goes back in time"
    begins = {place: [_ns(item.ts) for item in track] for place, track in tracks.items()}
    for start, end in ((starts[number], ends[number]) for number in starts):
        source, target = (_slice_of(event, tracks, begins) for event in (start, end))
        assert source.ts <= target.ts, f"Perfetto turns the arrow {start.name} round: {target} began before {source}"


def _slice_of(
    event: FlowStart | FlowEnd, tracks: dict[tuple[int, int], list[Complete]], begins: dict[tuple[int, int], list[int]]
) -> Complete:
    """The innermost one that an arrow's end lies in."""
    place, at = (event.pid, event.tid), _ns(event.ts)
    last = bisect.bisect_right(begins[place], at)  # which have begun by then
    found = next((item for item in reversed(tracks[place][:last]) if _ns(item.ts) + _ns(item.dur) >= at), None)
    assert found is not None, f"{event} lies within no slice"
    return found


def _ns(microseconds: float) -> int:
    return round(microseconds * 1e3)
