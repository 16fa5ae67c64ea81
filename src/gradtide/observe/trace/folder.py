"""The files of a run, and the trace of all of them."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradtide.errors import DataError, OutputError
from gradtide.events import ClockAligned
from gradtide.observe.bounded_log import read_bounded
from gradtide.observe.clocks import Alignment
from gradtide.observe.event_log import parse_event, read_events
from gradtide.observe.meter import Timed
from gradtide.observe.trace.keeping import KeptSteps, keep_steps
from gradtide.observe.trace.meeting import Meetings
from gradtide.observe.trace.pieces import Tracks
from gradtide.observe.trace.requests import WorkerRequests
from gradtide.observe.trace.server import ServerTracks, draw_coordinator
from gradtide.observe.trace.steps import cut_into_steps
from gradtide.observe.trace.tasks import TaskTracks
from gradtide.observe.trace.worker import WorkerTracks, worker_place

__all__ = ["MOST_EVENTS", "RunLogs", "find_logs", "make_trace", "write_trace"]

MOST_EVENTS = 200_000  # some 20 MB
_WORKER = re.compile(r"worker-(\d+)\.jsonl")
_DONE, _UPDATED = b'"event": "BatchDone"', b'"event": "ParametersUpdated"'
_CLOCK = b'"event": "ClockAligned"'
_FEWEST = 16  # steps: a trace of fewer shows nothing


@dataclass(frozen=True, slots=True)
class RunLogs:
    """Where the events of a run are."""

    workers: Mapping[int, Path]  # by rank
    servers: Mapping[str, Path] = field(default_factory=dict)  # by name
    coordinator: Path | None = None


@dataclass(slots=True)
class _Extent:
    """How long logs of workers are, and which steps they are of."""

    lines: int = 0
    first: int = 0
    last: int = 0
    own_loops: set[int] = field(default_factory=set)  # ranks whose loop does not say that a batch is done
    clocks: dict[str, list[Timed]] = field(default_factory=dict)  # what each log tells of them

    @property
    def steps(self) -> int:
        return max(1, self.last - self.first + 1)


def find_logs(folder: Path) -> RunLogs:
    """All of one that is, or was, under way."""
    workers, servers, coordinator = dict[int, Path](), dict[str, Path](), None
    for path in sorted(folder.glob("*.jsonl")):
        name = path.name.removesuffix(".jsonl")
        if found := _WORKER.fullmatch(path.name):
            workers[int(found[1])] = path
        elif name == "coordinator":
            coordinator = path
        elif name != "metrics" and not name.endswith((".last", ".before")):
            servers[name] = path
    return RunLogs(dict(sorted(workers.items())), servers, coordinator)


def write_trace(path: Path, folder: Path, name: str, most: int = MOST_EVENTS) -> dict[str, Any]:
    """Writes the trace of a run, and returns what is said of it in the file."""
    found = make_trace(find_logs(folder), name, most)
    try:
        path.write_text(json.dumps(found, separators=(",", ":"), allow_nan=False), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write the trace to {path}: {error.strerror}; choose another --output") from None
    about: dict[str, Any] = found["otherData"]
    return about


def make_trace(logs: RunLogs, name: str, most: int = MOST_EVENTS) -> dict[str, Any]:
    """The trace as plain data, of at most so many events: first and last steps and some between, where there are
    more."""
    extent = _measure(logs)
    alignment = Alignment(extent.clocks)
    steps = max(_FEWEST, min(extent.steps, most * extent.steps // max(1, extent.lines)))  # a line is one event or more
    while True:
        kept = keep_steps(extent.first, extent.last, steps)
        tracks = _draw(logs, extent, kept, alignment)
        if len(tracks) <= most or steps <= _FEWEST:
            break
        steps = max(_FEWEST, min(steps // 2, steps * most // len(tracks)))
    about = {"run": name, "kept": kept.describe(), "events": len(tracks), "arrows_left_out": tracks.backward}
    about |= {"clock": alignment.root, "clock_errors_s": alignment.describe()}
    return {"traceEvents": tracks.finish(), "displayTimeUnit": "ms", "otherData": about}


def _draw(logs: RunLogs, extent: _Extent, kept: KeptSteps, alignment: Alignment) -> Tracks:
    tracks, meetings, requests = Tracks(), Meetings(), dict[int, WorkerRequests]()
    tasks = TaskTracks(tracks)
    for rank, path in logs.workers.items():
        align = alignment.of(path.name)
        drawn, asked = WorkerTracks(tracks, rank, align), requests.setdefault(rank, WorkerRequests())
        for step in cut_into_steps(_checked(path, read_events(path)), own_loop=rank in extent.own_loops):
            meetings.note(rank, step, align, kept=step.number in kept)
            asked.note(step, align, kept=step.number in kept)
            if step.number in kept:
                drawn.draw(step)
                tasks.draw(worker_place(rank).pid, step, align)
            else:
                for timed in step.events:
                    drawn.draw_marks(timed)
    meetings.draw(tracks)
    tasks.draw_arrows()
    for number, (name, path) in enumerate(logs.servers.items()):
        ServerTracks(tracks, number, name, requests).draw(_checked(path, read_bounded(path)), alignment.of(path.name))
    if logs.coordinator is not None:
        events = _checked(logs.coordinator, read_bounded(logs.coordinator))
        draw_coordinator(tracks, events, alignment.of(logs.coordinator.name))
    return tracks


def _checked(path: Path, events: Iterator[Timed]) -> Iterator[Timed]:
    with _reading(path):
        yield from events


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}; remove it, and the rest is drawn") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not what gradtide writes ({error}); remove it, and the rest is drawn") from None


def _measure(logs: RunLogs) -> _Extent:
    """Without reading what lines say."""
    extent, numbers = _Extent(), list[int]()
    for rank, path in logs.workers.items():
        with _reading(path):
            numbers += _measure_worker(extent, rank, path)
    others = [*logs.servers.values(), *([logs.coordinator] if logs.coordinator is not None else [])]
    for path in others:  # which are bounded
        told = [timed for timed in _checked(path, read_bounded(path)) if isinstance(timed.event, ClockAligned)]
        extent.clocks[path.name] = told
    extent.first, extent.last = min(numbers, default=1), max(numbers, default=1)
    return extent


def _measure_worker(extent: _Extent, rank: int, path: Path) -> list[int]:
    """Its first step and its last one, if it has any."""
    done, updates = list[bytes](), 0
    with path.open("rb") as file:
        for line in file:
            extent.lines += 1
            updates += _UPDATED in line
            if _CLOCK in line and line.endswith(b"\n"):
                extent.clocks.setdefault(path.name, []).append(parse_event(line))
            if _DONE in line and line.endswith(b"\n"):
                done = [done[0], line] if done else [line]
    if not done and updates:
        extent.own_loops.add(rank)
        return [1, updates]
    return [int(json.loads(line)["step"]) for line in done]
