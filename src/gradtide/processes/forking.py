"""Processes made by fork: they die with their maker, start with a fresh process's signals, and their end wakes it."""

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence

from gradtide.processes.ready import HasDescriptor, can_read
from gradtide.processes.wake import WakePipe

__all__ = ["Children", "become_reaper"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Children:
    """What every fork server does: makes children, sleeps until one has ended or something can be read, reaps them.

    There is one a process: the kernel tells a process of its children's ends once.
    """

    def __init__(self) -> None:
        self._wake = WakePipe()
        signal.set_wakeup_fd(self._wake.write_fileno)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def fork(self) -> int:
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
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # which Ray blocks in its processes
            self._wake.close()
        return pid

    def wait(self, things: Sequence[HasDescriptor | int], timeout_s: float | None) -> list[HasDescriptor | int]:
        """Until one of these things can be read, a child has ended, or so long; what can be read."""
        readable = can_read([self._wake, *things], timeout_s)
        self._wake.clear()
        return [thing for thing in readable if thing is not self._wake]

    def ended(self) -> Iterator[tuple[int, int]]:
        """Each child that has ended, and its exit code, or minus the signal. It is reaped when the next is asked for:
        until then its number is its own. Orphans that became ours are among them."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            yield found.si_pid, found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            os.waitpid(found.si_pid, 0)


def become_reaper() -> None:
    """Grandchildren whose parent dies become our children, so that none of them is lost sight of."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
