"""Where the dashboard's figures come from: a run's folder, and a coordinator. Both are only read."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradtide.dashboard.run_view import RunEnd, RunView
from gradtide.errors import GradtideError
from gradtide.events import ClockAligned
from gradtide.observe.clocks import Alignment
from gradtide.observe.event_log import LogReader
from gradtide.observe.meter import Timed
from gradtide.observe.run_facts import read_facts
from gradtide.store.local.status import Status, StatusAsker, servers_of
from gradtide.store.wire.messages import Health, Table
from gradtide.transport.keys import Credentials

__all__ = ["RunSource", "StoreSource"]

_MOST_BYTES = 2 << 20  # of a file at a time: a long run is read in pieces
_TAIL_BYTES = 1 << 16
_ASK_S = 0.5
_NAME = re.compile(r"worker-(\d+)\.jsonl")


class RunSource:
    """Follows what workers write down in a folder, which may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.view = RunView(folder.name)
        self.store = ""  # the address of its store, once it is known
        self._knows_facts, self._facts_at = False, 0  # and of which change they are
        self._began = False  # whether anything was read of it
        self._readers: dict[int, LogReader] = {}
        self._offsets: dict[int, float] = {}
        self._lines = _Lines(folder / "metrics.jsonl")
        self._clocks: dict[int, list[Timed]] = {}  # what each worker tells of them
        self._alignment = Alignment({})

    @property
    def may_have_store(self) -> bool:
        """Whether nobody has said yet that it has one or none. A run of one process says nothing, and has none."""
        return not self._knows_facts and not self._began

    def poll(self) -> bool:
        """Takes in what is new; whether there may be more at once."""
        self._read_facts()
        for path in self.folder.glob("worker-*.jsonl"):
            found = _NAME.fullmatch(path.name)
            if found is not None:
                self._readers.setdefault(int(found[1]), LogReader(path))
        if not self._readers:
            for line in self._lines.read():
                self._began = True
                self.view.note_line(line)
        more = [self._read(rank) for rank in sorted(self._readers)]
        return any(more)

    def _read(self, rank: int) -> bool:
        events = self._readers[rank].read(_MOST_BYTES)
        if not events:
            return False
        self._began, last_s = True, events[-1].at_s
        if rank not in self._offsets:
            self._offsets[rank] = _unix_offset_s(self.folder / f"worker-{rank}.jsonl", last_s)
        align = self._align(rank, events)
        aligned = [Timed(align(at_s), event) for at_s, event in events]
        self.view.note(rank, aligned, self._offsets[rank] + last_s - align(last_s))
        return len(events) > _MOST_BYTES // 512

    def _align(self, rank: int, events: list[Timed]) -> Callable[[float], float]:
        """Brings a worker's times to one clock for all, as far as is known by now."""
        told = [timed for timed in events if isinstance(timed.event, ClockAligned)]
        if told:
            self._clocks[rank] = self._clocks.get(rank, []) + told
            self._alignment = Alignment({str(known): log for known, log in sorted(self._clocks.items())})
        return self._alignment.of(str(rank))

    def _read_facts(self) -> None:
        with suppress(FileNotFoundError):
            changed = (self.folder / "run.json").stat().st_mtime_ns
            if changed != self._facts_at and (facts := read_facts(self.folder)) is not None:
                self._knows_facts, self._facts_at, self.store = True, changed, facts.store
                self.view.title = facts.title
                self.view.ended = None if facts.ended_unix_s is None else RunEnd(facts.ended_unix_s, facts.code)


class _Lines:
    """New whole lines of a file of JSON."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes = path, 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, end, _ = file.read(_MOST_BYTES).rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read_bytes += len(whole) + len(end)
        return [json.loads(line) for line in whole.split(b"\n") if line]


def _unix_offset_s(path: Path, otherwise_s: float) -> float:
    """From a worker's clock to the wall's: its last line was written when the file was last changed. Good across hosts
    that share a file system, and after a restart of the machine."""
    with path.open("rb") as file:
        changed_s = path.stat().st_mtime
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    try:
        return changed_s - float(json.loads(lines[-1])["at_s"])
    except (IndexError, KeyError, ValueError):
        return changed_s - otherwise_s


class StoreSource:
    """Asks a coordinator and its servers what `gradtide status` asks, over connections that stay open. Servers, which
    have the gradients to see to, are asked every other time; who has died is the coordinator's to say."""

    def __init__(self, address: str, credentials: Credentials | None) -> None:
        self.address, self._asker = address, StatusAsker(credentials, _ASK_S)
        self._table: Table | None = None  # when servers were last asked
        self._servers: dict[str, Health | None] = {}
        self._fresh = False  # whether they were asked at the last time

    def ask(self) -> Status | str:
        """How it is, or why nobody knows."""
        try:
            told = self._asker.inspect(self.address)
            if told.table != self._table:
                self._asker.close()  # also to servers that have left
            if told.table != self._table or not self._fresh:
                self._servers = {entry.name: self._asker.health(entry) for entry in servers_of(told)}
                self._table, self._fresh = told.table, True
            else:
                self._fresh = False
        except (GradtideError, OSError) as error:
            return str(error)
        return Status(told, self._servers)

    def close(self) -> None:
        self._asker.close()
