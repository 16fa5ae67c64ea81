"""What workers write, on its way to our own output: whole lines, marked by rank, never mixed within a line."""

import contextlib
import math
import os
import select
import selectors
import stat
import time
from collections.abc import Callable

from gradtide.environment import read_environment
from gradtide.launch.lines import Lines, mark
from gradtide.launch.nodes.collecting import Collected, Listener, Who
from gradtide.processes.ready import can_write

__all__ = ["Output"]

_OUT, _ERR = 1, 2
_PROGRESS_S = 1.0  # how often an unfinished progress bar is shown
_CHUNK_BYTES = 1 << 18
_WAIT_S = 0.1
_LAST_BYTES = 300  # of a worker's last line, which is said again beside its failure


class Output:
    """All pipes from workers, and what agents bring. `reader_gone` when nobody reads what we write any more."""

    def __init__(self, workers: int, selector: selectors.BaseSelector) -> None:
        self.reader_gone = False
        self.give_up_s = math.inf  # when to stop waiting for somebody who does not read
        self._workers = workers
        self._shown: list[tuple[int, Lines]] = []  # where to, of everybody who may yet write
        self._brought: dict[tuple[Who, int], Listener] = {}  # of what agents bring, by who wrote it and where to
        self.idle: Callable[[], None] = lambda: None  # called now and then while somebody does not read
        self._next_progress_s = 0.0
        self._last: dict[Who, bytes] = {}  # the last line that each has written, with its mark
        self._latest = b""  # what was written last of all
        out, err = os.fstat(_OUT), os.fstat(_ERR)
        self._pieces_bytes = {
            to: _CHUNK_BYTES if stat.S_ISREG(found.st_mode) else select.PIPE_BUF
            for to, found in ((_OUT, out), (_ERR, err))
        }
        self.together = (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
        self._pipes = Collected(self.together, selector, self._listen)

    def open(self, rank: int) -> tuple[int, int]:
        """Where a worker is to write its standard output and standard error; close both once it has them."""
        return self._pipes.open(rank)

    def drain(self, rank: int | None = None) -> None:
        """Passes on all that this worker, or everybody, has written so far."""
        self._pipes.drain(rank)

    def _listen(self, who: Who, to: int) -> Listener:
        lines = self._lines(who, to)
        self._shown.append((to, lines))

        def take(data: bytes) -> None:
            whole = lines.feed(data) if data else lines.flush()
            if last := lines.without_mark(whole[whole.rfind(b"\n", 0, -1) + 1 :]):
                self._last[who] = last
            self._write(to, whole)
            if not data:
                self._shown = [(at, other) for at, other in self._shown if other is not lines]

        return take

    def _lines(self, who: Who, to: int) -> Lines:
        coloured = os.isatty(to) and read_environment().colour
        return Lines(mark(who, self._workers, coloured) if isinstance(who, int) else f"[{who}] ".encode())

    def bring(self, who: Who, to: int, data: bytes) -> None:
        """What a worker, or another process by its name, has written on another machine; nothing: that was all."""
        if to not in (_OUT, _ERR):
            return
        if (who, to) not in self._brought:
            self._brought[who, to] = self._listen(who, to)
        self._brought[who, to](data)
        if not data:
            del self._brought[who, to]

    def patience_s(self) -> float | None:
        """How long nobody needs to call show_progress."""
        if not any(lines.in_progress for _, lines in self._shown):
            return None
        return max(0.0, self._next_progress_s - time.monotonic())

    def show_progress(self) -> None:
        if time.monotonic() >= self._next_progress_s:
            self._next_progress_s = time.monotonic() + _PROGRESS_S
            for to, lines in self._shown:
                if lines.in_progress:
                    self._write(to, lines.progress())

    def tell(self, rank: int, text: str) -> None:
        """Text about a worker, marked as if it had written it to its standard error."""
        self.drain(rank)
        lines = self._lines(rank, _ERR)
        self._write(_ERR, lines.feed(text.encode(errors="backslashreplace")) + lines.flush())

    def last_line(self, rank: int) -> str:
        """That a worker has written; shortened if it is long."""
        self.drain(rank)
        return self._last.get(rank, b"")[:_LAST_BYTES].decode(errors="backslashreplace")

    def say(self, text: str) -> None:
        """A line of the launcher's own."""
        self._write(_ERR, _own_line(text))

    def ends_with(self, text: str) -> bool:
        """Whether this line of the launcher's was the last of all."""
        return self._latest == _own_line(text)

    def close(self) -> None:
        self.drain()
        self._pipes.close()
        for take in self._brought.values():
            take(b"")
        self._brought.clear()

    def _write(self, to: int, data: bytes) -> None:
        self._latest = data or self._latest
        self._put(to, data)

    def _put(self, to: int, data: bytes) -> None:
        """In pieces that a pipe takes whole or not at all: a reader that does not read must not hold us for ever."""
        view, size = memoryview(data), self._pieces_bytes[to]
        try:
            while view and not self.reader_gone:
                if can_write([to], _WAIT_S):
                    with contextlib.suppress(BlockingIOError):  # whoever started us made it so
                        view = view[os.write(to, view[:size]) :]
                elif time.monotonic() > self.give_up_s:
                    self.reader_gone = True
                else:
                    self.idle()
        except OSError:  # a closed pipe, or a terminal that has hung up
            self.reader_gone = True


def _own_line(text: str) -> bytes:
    return f"gradtide: {text}\n".encode(errors="backslashreplace")
