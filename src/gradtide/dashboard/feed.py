"""One reader of the sources, in threads, and many readers of what is new."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gradtide.dashboard.picture import Picture
from gradtide.dashboard.run_view import RunView
from gradtide.dashboard.sources import RunSource, StoreSource
from gradtide.dashboard.store_view import describe_store, happenings, unreachable
from gradtide.errors import GradtideError
from gradtide.observe.figures import MetricFigures
from gradtide.store.local.figures import add_status
from gradtide.store.local.status import Status
from gradtide.transport.keys import Credentials

__all__ = ["Feed", "Reader"]

_LOOK_S = 0.25
_QUEUED = 64  # messages that a reader may be behind; then it begins anew
_HAPPENED = 200
_LASTING_S = 1.0
_FINISH_S = 2.0
MOST_READERS = 32


class Reader:
    """A browser's end of the stream: a queue in the loop of the server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.queue: asyncio.Queue[str] = asyncio.Queue(_QUEUED)

    def put(self, message: str) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: str) -> None:
        if self.queue.full():  # it sleeps: all it has missed is in the next snapshot
            while not self.queue.empty():
                self.queue.get_nowait()
            message = _encode("again", {})
        self.queue.put_nowait(message)


class Feed:
    """What is known of a run, of a store, or of both."""

    def __init__(self, run: RunSource | None, address: str, credentials: Credentials | None) -> None:
        self._run, self._credentials = run, credentials
        self._store = StoreSource(address, credentials) if address else None
        self._lock, self._over = threading.Lock(), threading.Event()
        self._readers: set[Reader] = set()
        self._status: Status | None = None
        self._seen: dict[str, Any] | None = None  # the store, as it was last told
        self._happened: list[dict[str, Any]] = []
        self._last, self._trouble = 0, ""
        self._awaited = self._find_awaited()
        self._noted: dict[str, float] = {}  # by note: since when it is there
        self.picture = Picture()
        self.is_ending: Callable[[], bool] = self._over.is_set  # the server's word: then streams end
        self._threads = [
            threading.Thread(target=self._follow, args=(look,), name=f"gradtide {name}", daemon=True)
            for name, look in (("run", self._look_at_run), ("store", self._look_at_store))
        ]

    @property
    def _view(self) -> RunView | None:
        return self._run.view if self._run is not None else None

    def _has_ended(self) -> bool:
        return self._view is not None and self._view.ended is not None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """The run is over, as far as whoever started us knows: readers hear of its last steps, and of its end."""
        deadline_s = time.monotonic() + _FINISH_S
        with suppress(GradtideError, OSError, ValueError):
            while self._look_at_run() and time.monotonic() < deadline_s:
                pass

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._store is not None:
            self._store.close()

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        reader = Reader(asyncio.get_running_loop())
        with self._lock:
            self._readers.add(reader)
            reader.queue.put_nowait(_encode("snapshot", self._snapshot()))
        try:
            yield reader
        finally:
            with self._lock:
                self._readers.discard(reader)

    @property
    def readers(self) -> int:
        return len(self._readers)

    def snapshot(self) -> str:
        with self._lock:
            return _encode("snapshot", self._snapshot())

    def figures(self) -> MetricFigures:
        """For a scrape."""
        figures = MetricFigures()
        with self._lock:
            if self._view is not None:
                self._view.add_figures(figures)
            if self._status is not None:
                add_status(figures, self._status)
        return figures

    # --- within ---

    def _snapshot(self) -> dict[str, Any]:
        run = self._view.snapshot() if self._view is not None else None
        happened = {"store_happened": self._happened, "picture": self.picture.version, "trouble": self._trouble}
        return {"run": run, "store": self._seen, "awaited": self._awaited, "now_unix_s": time.time(), **happened}

    def _follow(self, look: Any) -> None:
        while not self._over.is_set():
            try:
                more = look()
            except (GradtideError, OSError, ValueError) as error:
                more = self._complain(str(error))
            if not more:
                self._over.wait(_LOOK_S)

    def _complain(self, text: str) -> bool:
        """A source that can't be read is said once, and looked at again."""
        with self._lock:
            if text != self._trouble:
                self._trouble = text
                self._tell({"trouble": text})
        return False

    def _look_at_run(self) -> bool:
        if self._run is None:
            return False
        with self._lock:
            more = self._run.poll()
            if self._store is None and self._run.store and not self._has_ended():
                self._store = StoreSource(self._run.store, self._credentials)
            self._say_what_is_awaited()
            if not more:
                new = self._run.view.delta()
                if new:
                    self._tell({"run": new})
            loads = self._run.view.link_bytes()
        if self._readers and self.picture.draw(loads):
            with self._lock:
                self._tell({"picture": self.picture.version})
        return more

    def _say_what_is_awaited(self) -> None:
        before, self._awaited = self._awaited, self._find_awaited()
        if self._awaited != before:
            self._tell({"awaited": self._awaited})

    def _find_awaited(self) -> str:
        """From whom something is yet to be heard, before anything is known of a store."""
        if self._has_ended():
            return "ended" if self._run is not None and self._run.store else "nothing"
        if self._store is not None:
            return "store"
        return "run" if self._run is not None and self._run.may_have_store else "nothing"

    def _look_at_store(self) -> bool:
        source = self._store
        if source is None or self._has_ended():  # its store ends with a run, and what was seen of it stays
            return False
        status, new = source.ask(), list[dict[str, Any]]()
        with self._lock:
            if self._has_ended():  # while it was asked
                return False
            if isinstance(status, str):
                self._status, seen = None, unreachable(source.address, status)
            else:
                self._status, seen = status, describe_store(source.address, status)
                self._last, new = happenings(status, self._last)
            self._happened = (self._happened + new)[-_HAPPENED:]
            seen["notes"] = self._lasting(seen["notes"])
            told = {"store": _changed(seen, self._seen)} if seen != self._seen else {}
            self._seen = seen
            if told or new:
                self._tell({**told, "store_happened": new})
        return False

    def _lasting(self, notes: list[str]) -> list[str]:
        """Those that have been there for a while: every round waits for somebody, for a moment."""
        now_s = time.monotonic()
        self._noted = {note: self._noted.get(note, now_s) for note in notes}
        return [note for note, since_s in self._noted.items() if now_s - since_s >= _LASTING_S]

    def _tell(self, new: dict[str, Any]) -> None:
        message = _encode("news", {**new, "now_unix_s": time.time()})
        for reader in self._readers:
            reader.put(message)


def _changed(seen: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in seen.items() if before is None or before.get(name) != value}


def _encode(event: str, data: dict[str, Any]) -> str:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"
