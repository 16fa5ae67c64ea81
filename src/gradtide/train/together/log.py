"""A worker's events as lines of a file: written by the worker, followed by whoever shows them, read at the end.

Times are those of time.monotonic, which all processes of a host share, so lines of several workers can be compared.
"""

import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from gradtide import events
from gradtide.errors import OutputError
from gradtide.events import BatchDone, EpochDone, Event
from gradtide.train.meter import Timed

__all__ = ["EventLog", "LogReader", "log_path"]

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
_FIELDS = {kind: [field.name for field in fields(kind)] for kind in _KINDS.values()}


def log_path(folder: Path, rank: int) -> Path:
    return folder / f"worker-{rank}.jsonl"


class EventLog:
    """An observer that writes. The file is made with the first event; what a step wrote is out when it is done."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._file: TextIO | None = None

    def observe(self, event: events.Event) -> None:
        kind = type(event)
        line: dict[str, Any] = {"at_s": round(self._clock(), 7), "event": kind.__name__}
        for name in _FIELDS[kind]:
            line[name] = getattr(event, name)
        try:
            file = self._open()
            file.write(json.dumps(line) + "\n")
            if kind in (BatchDone, EpochDone):
                file.flush()
        except OSError as error:
            raise OutputError(f"can't write {self._path} ({error.strerror}); choose another --output") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> TextIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8")
        return self._file


class LogReader:
    """Reads on where it stopped. A line that is not whole yet, or that a kill cut short, waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes = path, 0

    def read(self) -> list[Timed]:
        """What is new; nothing while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read_bytes += len(whole) + len(end)
        return [_parse(line) for line in whole.split(b"\n") if line]


def _parse(line: bytes) -> Timed:
    found = json.loads(line)
    return Timed(found.pop("at_s"), _KINDS[found.pop("event")](**found))
