"""Sleeping until a word in shared memory changes: futex(2), which costs nothing while asleep."""

import ctypes
import errno
import platform

from gradtide.errors import ConfigError

__all__ = ["FUTEX_CALL", "futex_wait"]

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # what each architecture calls the futex system call
FUTEX_CALL = _NUMBERS.get(platform.machine(), -1)
_WAIT = 0  # without FUTEX_PRIVATE_FLAG: the word is shared between processes

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def futex_wait(address: int, expected: int, timeout_s: float) -> None:
    """Sleeps while the 32-bit word at `address` is `expected`, until a wake, a signal or the timeout. Look again."""
    if FUTEX_CALL < 0:
        raise ConfigError(f"shared memory needs x86_64, aarch64 or riscv64, not {platform.machine()}; use Gloo here")
    seconds = max(0.0, timeout_s)
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    call, word, wait = ctypes.c_long(FUTEX_CALL), ctypes.c_void_p(address), ctypes.c_int(_WAIT)
    result = _syscall(call, word, wait, ctypes.c_uint32(expected & 0xFFFFFFFF), ctypes.byref(limit), None, 0)
    failure = ctypes.get_errno() if result < 0 else 0
    assert failure in (0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT), f"futex: {errno.errorcode.get(failure)}"
