"""Processes of a node besides workers: a server, a coordinator. They die with the agent, however it ends."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from gradtide.environment import with_variables

__all__ = ["RoleProcesses"]

_PR_SET_PDEATHSIG = 1
_GRACE_S = 0.5
_C = ctypes.CDLL(None)


class RoleProcesses:
    """By name. `open_output(name)` gives where one is to write, `ended(name, status)` hears of its end."""

    def __init__(
        self,
        variables: Mapping[str, str],
        open_output: Callable[[str], tuple[int, int]],
        ended: Callable[[str, int], None],
    ) -> None:
        self._variables, self._open_output, self._ended = variables, open_output, ended
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at_s = 0.0

    def start(self, name: str, arguments: tuple[str, ...]) -> None:
        out, err = self._open_output(name)
        try:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "gradtide", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=with_variables(self._variables),
                preexec_fn=_die_with_parent,
            )
        finally:
            os.close(out)
            os.close(err)

    def look(self) -> None:
        """To be called now and then: tells who has ended."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                del self._processes[name]
                self._ended(name, process.returncode)

    def end(self) -> None:
        """Asks all to end; `wait` kills who has not after a moment."""
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)  # at SIGTERM a server would hand over what it holds
        self._kill_at_s = time.monotonic() + _GRACE_S

    def wait(self) -> None:
        for process in self._processes.values():
            try:
                process.wait(max(0.0, self._kill_at_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def _die_with_parent() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # which Ray blocks in its processes
    _C.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
