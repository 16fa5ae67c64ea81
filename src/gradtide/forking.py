"""Processes made by fork: they die with their maker, start with a fresh process's signals, and their end wakes it."""

import contextlib
import ctypes
import os
import signal

__all__ = ["Wake", "become_reaper", "fork"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Wake:
    """Something for `select` that is readable once a child of this process has ended."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)


def fork(wake: Wake) -> int:
    """os.fork. The child is killed when this process ends, however it ends (PR_SET_PDEATHSIG)."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked to be told
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(wake.fd)
        os.close(wake._write)
    return pid


def become_reaper() -> None:
    """Grandchildren whose parent dies become our children, so that none of them is lost sight of."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
