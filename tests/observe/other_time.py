"""A process whose clock is another: in a time namespace of its own, as on another host. Needs root and Linux 5.6."""

import ctypes
import os
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress

import pytest

__all__ = ["ELSEWHERE_S", "in_other_time"]

_CLONE_NEWTIME = 0x80
ELSEWHERE_S = 1000  # by which its clock is ahead of ours


@contextmanager
def in_other_time(work: Callable[[], None]):
    """Meanwhile `work` is done there, in a process that is made by fork; it must end well, and be let to."""
    if ctypes.CDLL(None, use_errno=True).unshare(0) != 0 or os.geteuid() != 0:
        pytest.skip("time namespaces need root")
    ready, told = os.pipe()
    outer = os.fork()
    if outer == 0:
        os._exit(_live_there(work, told))
    os.close(told)
    try:
        with os.fdopen(ready) as pipe:
            if pipe.readline() != "there\n":
                pytest.skip("there are no time namespaces here")
        yield
    finally:
        _, status = os.waitpid(outer, 0)
    assert status == 0


def _live_there(work: Callable[[], None], told: int) -> int:
    """In the first of two processes: those that it makes are in the other time, but not itself."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWTIME) != 0:
        return 0
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write(f"monotonic {ELSEWHERE_S} 0\n")
    inner = os.fork()
    if inner == 0:
        with suppress(OSError):
            os.write(told, b"there\n")
            os.close(told)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
