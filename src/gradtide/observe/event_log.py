"""A worker's events as lines of a file: written by the worker, followed by whoever shows them, read at the end.

Times are those of time.monotonic, which all processes of a host share, so lines of several workers can be compared; of
several hosts when their clocks are aligned (clocks.py).
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from gradtide import events
from gradtide.environment import read_environment
from gradtide.errors import OutputError
from gradtide.events import BatchDone, Emit, EpochDone, Event
from gradtide.observe.meter import Timed

__all__ = ["KINDS", "EventLog", "LogReader", "find_log", "log_path", "parse_event", "read_events"]

KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
_FIELDS = {kind: [field.name for field in fields(kind)] for kind in KINDS.values()}

_PIECE_BYTES = 4 << 20


def log_path(folder: Path, rank: int) -> Path:
    return folder / f"worker-{rank}.jsonl"


class EventLog:
    """An observer that writes. The file is made with the first event; what a step wrote is out when it is done."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        ends: tuple[type[Event], ...] = (BatchDone, EpochDone),
        add: bool = False,
    ) -> None:
        """`ends`: the events with which a step is done. `add`: to what is in the file already."""
        self._path, self._clock, self._ends, self._adds = path, clock, ends, add
        self._file: TextIO | None = None
        self._lock = threading.Lock()  # devices of one process have threads

    def observe(self, event: events.Event) -> None:
        kind = type(event)
        line: dict[str, Any] = {"at_s": round(self._clock(), 7), "event": kind.__name__}
        for name in _FIELDS[kind]:
            line[name] = getattr(event, name)
        try:
            with self._lock:
                file = self._open()
                file.write(json.dumps(line) + "\n")
                if kind in self._ends:
                    file.flush()
        except OSError as error:
            raise OutputError(f"can't write {self._path} ({error.strerror}); choose another --output") from error

    def around(self, emit: Emit) -> Emit:
        """An observer that writes, and tells another."""

        def observe(event: Event) -> None:
            self.observe(event)
            emit(event)

        return observe

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> TextIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a" if self._adds else "w", encoding="utf-8")
        return self._file


def find_log(rank: int, *ends: type[Event]) -> EventLog | None:
    """Where this worker is to write its events down, if its launcher has said so."""
    folder = read_environment().events
    return EventLog(log_path(Path(folder), rank), ends=ends, add=True) if folder else None


class LogReader:
    """Reads on where it stopped. A line that is not whole yet, or that a kill cut short, waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes = path, 0

    def read(self, most_bytes: int = -1) -> list[Timed]:
        """What is new, or the first so many bytes of it; nothing while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, end, _ = file.read(most_bytes).rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read_bytes += len(whole) + len(end)
        return [parse_event(line) for line in whole.split(b"\n") if line]


def read_events(path: Path) -> Iterator[Timed]:
    """All that a file holds, a piece of it at a time."""
    reader = LogReader(path)
    while found := reader.read(_PIECE_BYTES):
        yield from found


def parse_event(line: bytes) -> Timed:
    found = json.loads(line.decode())  # which is half as long as of bytes
    return Timed(float(found.pop("at_s")), KINDS[found.pop("event")](**found))
