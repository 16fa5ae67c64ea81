"""What workers and other roles of one machine write: the pipes they write into, on the way to our own output, or from
an agent to the head. Who writes faster than it is taken waits, as it would for a terminal."""

import contextlib
import fcntl
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Collected", "Listener", "Who"]

_OUT, _ERR = 1, 2
_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20  # instead of 64 KiB: a worker that writes much waits less often
Who = int | str
Listener = Callable[[bytes], None]  # takes what was written into one pipe; nothing: that was all


@dataclass(frozen=True, slots=True)
class _Source:
    read: int
    who: Who
    take: Listener


class Collected:
    """All pipes. `listen(who, to)` is asked for a listener of each."""

    def __init__(
        self, together: bool, selector: selectors.BaseSelector, listen: Callable[[Who, int], Listener]
    ) -> None:
        """`together`: one pipe for standard output and error keeps their order, where both go to the same place."""
        self._together, self._selector, self._listen = together, selector, listen
        self._sources: dict[int, _Source] = {}
        self._held = False

    def open(self, who: Who) -> tuple[int, int]:
        """Where it is to write its standard output and standard error; close both once it has them."""
        err = self._pipe(who, _OUT if self._together else _ERR)
        return (os.dup(err), err) if self._together else (self._pipe(who, _OUT), err)

    def _pipe(self, who: Who, to: int) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        with contextlib.suppress(OSError):  # a user may have only so many large pipes
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._sources[read] = _Source(read, who, self._listen(who, to))
        if not self._held:
            self._selector.register(read, selectors.EVENT_READ, lambda: self._read(read))
        return write

    def hold(self, held: bool) -> None:
        """While nobody takes anything, nothing is read."""
        if held == self._held:
            return
        self._held = held
        for read in self._sources:
            if held:
                self._selector.unregister(read)
            else:
                self._selector.register(read, selectors.EVENT_READ, lambda read=read: self._read(read))

    def drain(self, who: Who | None = None) -> None:
        """Passes on all that it, or everybody, has written so far."""
        for source in list(self._sources.values()):
            while who in (None, source.who) and self._read(source.read):
                pass

    def _read(self, read: int) -> bool:
        source = self._sources.get(read)
        if source is None:
            return False
        try:
            data = os.read(read, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            source.take(data)
        else:
            self._forget(source)
        return bool(data)

    def _forget(self, source: _Source) -> None:
        if not self._held:
            self._selector.unregister(source.read)
        os.close(source.read)
        del self._sources[source.read]
        source.take(b"")

    def close(self) -> None:
        """Somebody who escaped us may still hold the other ends."""
        for source in list(self._sources.values()):
            self._forget(source)
