"""What workers write, on its way to our own output: whole lines, marked by rank, never mixed within a line."""

import contextlib
import fcntl
import math
import os
import select
import selectors
import stat
import time
from dataclasses import dataclass

from gradtide.environment import read_environment
from gradtide.launch.lines import Lines, mark
from gradtide.processes.ready import can_write

__all__ = ["Output"]

_OUT, _ERR = 1, 2
_PROGRESS_S = 1.0  # how often an unfinished progress bar is shown
_CHUNK_BYTES = 1 << 18
_WAIT_S = 0.1
_PIPE_BYTES = 1 << 20  # instead of 64 KiB: a worker that writes much waits less often


@dataclass(frozen=True, slots=True)
class _Pipe:
    read: int
    to: int
    rank: int
    lines: Lines


class Output:
    """All pipes from workers. `reader_gone` when nobody reads what we write any more."""

    def __init__(self, workers: int, selector: selectors.BaseSelector) -> None:
        self.reader_gone = False
        self.give_up_s = math.inf  # when to stop waiting for somebody who does not read
        self._workers, self._selector = workers, selector
        self._pipes: dict[int, _Pipe] = {}
        self._next_progress_s = 0.0
        out, err = os.fstat(_OUT), os.fstat(_ERR)
        self._pieces_bytes = {
            to: _CHUNK_BYTES if stat.S_ISREG(found.st_mode) else select.PIPE_BUF
            for to, found in ((_OUT, out), (_ERR, err))
        }
        # One pipe for both keeps their order, where both go to the same place anyway.
        self._together = (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)

    def open(self, rank: int) -> tuple[int, int]:
        """Where a worker is to write its standard output and standard error; close both once it has them."""
        err = self._pipe(rank, _ERR if not self._together else _OUT)
        return (os.dup(err), err) if self._together else (self._pipe(rank, _OUT), err)

    def _pipe(self, rank: int, to: int) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        with contextlib.suppress(OSError):  # a user may have only so many large pipes
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        coloured = os.isatty(to) and read_environment().colour
        self._pipes[read] = _Pipe(read, to, rank, Lines(mark(rank, self._workers, coloured)))
        self._selector.register(read, selectors.EVENT_READ)
        return write

    def show(self, read: int) -> bool:
        """Passes on some of what there is; False if there was nothing."""
        pipe = self._pipes.get(read)
        if pipe is None:
            return False
        try:
            data = os.read(read, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._write(pipe.to, pipe.lines.feed(data) if data else pipe.lines.flush())
        if not data:
            self._selector.unregister(read)
            os.close(read)
            del self._pipes[read]
        return bool(data)

    def drain(self, rank: int | None = None) -> None:
        """Passes on all that this worker, or everybody, has written so far."""
        for pipe in list(self._pipes.values()):
            while rank in (None, pipe.rank) and self.show(pipe.read):
                pass

    def patience_s(self) -> float | None:
        """How long nobody needs to call show_progress."""
        if not any(pipe.lines.in_progress for pipe in self._pipes.values()):
            return None
        return max(0.0, self._next_progress_s - time.monotonic())

    def show_progress(self) -> None:
        if time.monotonic() >= self._next_progress_s:
            self._next_progress_s = time.monotonic() + _PROGRESS_S
            for pipe in self._pipes.values():
                if pipe.lines.in_progress:
                    self._write(pipe.to, pipe.lines.progress())

    def tell(self, rank: int, text: str) -> None:
        """Text about a worker, marked as if it had written it to its standard error."""
        self.drain(rank)
        lines = Lines(mark(rank, self._workers, os.isatty(_ERR) and read_environment().colour))
        self._write(_ERR, lines.feed(text.encode(errors="backslashreplace")) + lines.flush())

    def say(self, text: str) -> None:
        """A line of the launcher's own."""
        self._write(_ERR, f"gradtide: {text}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        self.drain()
        for pipe in list(self._pipes.values()):  # somebody who escaped us still holds the other end
            self._write(pipe.to, pipe.lines.flush())
            self._selector.unregister(pipe.read)
            os.close(pipe.read)
        self._pipes.clear()

    def _write(self, to: int, data: bytes) -> None:
        """In pieces that a pipe takes whole or not at all: a reader that does not read must not hold us for ever."""
        view, size = memoryview(data), self._pieces_bytes[to]
        try:
            while view and not self.reader_gone:
                if can_write([to], _WAIT_S):
                    with contextlib.suppress(BlockingIOError):  # whoever started us made it so
                        view = view[os.write(to, view[:size]) :]
                elif time.monotonic() > self.give_up_s:
                    self.reader_gone = True
        except OSError:  # a closed pipe, or a terminal that has hung up
            self.reader_gone = True
