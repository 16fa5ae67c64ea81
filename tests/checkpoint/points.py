"""Every system call of this process's files as a point at which something can happen."""

import os
import signal
from collections.abc import Callable

NAMES = ("open", "write", "fsync", "replace", "mkdir", "close", "unlink", "rmdir")


def run_in_child(work: Callable[[], None], at: int, what: Callable[[str], None]) -> tuple[int, int]:
    """Runs `work` in a forked process; at its `at`-th call of a function of NAMES, `what(name)` happens instead.

    Returns the child's exit status, and how many calls there were.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _live(work, at, what, write)
    os.close(write)
    count = 0
    with os.fdopen(read, "rb") as told:
        for line in told:
            count = int(line)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count


def _live(work: Callable[[], None], at: int, what: Callable[[str], None], tell: int) -> None:
    count, plain_write = 0, os.write

    def wrap(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            plain_write(tell, b"%d\n" % count)
            if count == at:
                if name == "write":
                    plain_write(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2])  # type: ignore[arg-type, index]
                what(name)
            return function(*arguments, **options)

        return called

    for name in NAMES:
        setattr(os, name, wrap(name, getattr(os, name)))
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        status = 3
    finally:
        os._exit(status)


def kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(name: str) -> None:
    raise OSError(5, "Input/output error")
