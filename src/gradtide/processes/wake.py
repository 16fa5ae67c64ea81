"""A pipe that ends the sleep of a loop: in `select`, `poll` or `epoll`, from another thread or from a signal."""

import contextlib
import os

__all__ = ["WakePipe"]


class WakePipe:
    """Readable, for whoever sleeps on it, from `wake` until `clear`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    @property
    def write_fileno(self) -> int:
        """The end that a signal writes to: see signal.set_wakeup_fd."""
        return self._write

    def wake(self) -> None:
        """Never waits; after `close`, nothing."""
        with contextlib.suppress(OSError):  # full of earlier words, which will do; or closed
            os.write(self._write, b"w")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """May be called twice. The numbers go first: another file may get them at once."""
        ends, self._read, self._write = (self._read, self._write), -1, -1
        for end in ends:
            if end >= 0:
                os.close(end)
