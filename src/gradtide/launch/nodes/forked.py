"""This machine, whose workers are forks of the program that asks for them: a notebook's function can't be imported.

The fork server is a fork of that program, made by a thread that ends at once: what OpenMP keeps for a thread that has
computed (torch's pool) would have the fork wait for threads that it does not have. For the rest of what a fork shares
and a fresh process would not, see `_leave_notebook`; accelerators and autograd's threads are refused before.
"""

import atexit
import builtins
import contextlib
import os
import random
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

from gradtide.errors import ConfigError
from gradtide.launch.forkserver import serve
from gradtide.launch.messages import Start
from gradtide.launch.nodes.local_node import BeginServer, ServerProcess
from gradtide.launch.worker import live_as
from gradtide.processes.ready import can_read

__all__ = ["check_fork", "forked_server"]

_ACCELERATORS = ("cuda", "xpu")
_INSTEAD = "call gradtide.launch first after a restart of the kernel, or write a script for gradtide run"


def check_fork() -> None:
    """Raises ConfigError where a fork of this process could not compute."""
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("gradtide.launch is for a program's main thread, which is told of Ctrl-C; call it there")
    for name in _ACCELERATORS:
        room = sys.modules.get(f"torch.{name}")
        if room is not None and room.is_initialized():
            raise ConfigError(f"this process has used {name} already, and its forks can't; {_INSTEAD}")
    if any(_name_of(task).startswith("pt_autograd") for task in Path("/proc/self/task").iterdir()):
        raise ConfigError(f"autograd has started threads for this machine's devices, and forks lack them; {_INSTEAD}")


def _name_of(task: Path) -> str:
    with contextlib.suppress(OSError):  # it has just ended
        return (task / "comm").read_text()
    return ""


def forked_server(run: Callable[[int], None], doing: str, preload: str, threads: int) -> BeginServer:
    """Workers call `run(rank)`."""

    def begin(control: socket.socket, reports: socket.socket, ours: tuple[socket.socket, ...]) -> ServerProcess:
        numbers = random.getstate()  # which Python draws anew in a fork

        def live() -> NoReturn:
            for one in ours:  # else it would not notice that they are closed
                one.close()
            _leave_notebook()
            start = serve(control, preload)
            random.setstate(numbers)
            _end_as_python_does(lambda: live_as(start, doing, lambda: _compute(start, run, threads), reports))

        return _Forked(_fork(live))

    return begin


def _fork(live: Callable[[], NoReturn]) -> int:
    pids: list[int] = []

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are looked after
            pid = os.fork()
        if pid == 0:
            try:
                live()
            finally:  # whatever happens, nothing of the notebook's goes on here
                traceback.print_exc()
                os._exit(1)
        pids.append(pid)

    thread = threading.Thread(target=fork, name="gradtide-fork")
    thread.start()
    thread.join()
    return pids[0]


def _leave_notebook() -> None:
    """Nothing here may speak to the kernel's threads, which did not come along, nor end what it holds."""
    os.setsid()  # a terminal's or a kernel's interrupt reaches the launcher alone, and workers then once
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout, sys.stderr = _stream(1), _stream(2)
    sys.excepthook, builtins.input = sys.__excepthook__, _no_input
    atexit._clear()


def _stream(to: int) -> TextIO:
    return open(to, "w", buffering=1, closefd=False, errors="backslashreplace")


def _no_input(prompt: object = "") -> str:
    raise EOFError("workers have no standard input")


def _compute(start: Start, run: Callable[[int], None], threads: int) -> None:
    if "torch" in sys.modules:  # which has read OMP_NUM_THREADS long ago
        sys.modules["torch"].set_num_threads(threads)
    if "gradtide.sync.job" in sys.modules:  # the notebook's, of one worker
        sys.modules["gradtide.sync.job"].current_job.cache_clear()
    run(start.rank)


def _end_as_python_does(run: Callable[[], None]) -> NoReturn:
    code: Any = 1
    try:
        run()
        code = 0
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as error:
        code = error.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 0xFF)


class _Forked:
    """Our child, as subprocess.Popen has one."""

    def __init__(self, pid: int) -> None:
        self.returncode: int | None = None
        self._pid, self._ended = pid, os.pidfd_open(pid)

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not can_read([self._ended], timeout):
                raise TimeoutError
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            os.close(self._ended)
        return self.returncode
