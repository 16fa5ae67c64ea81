"""This machine: starts the fork server, asks it for workers, and hears from both."""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gradtide.environment import with_variables
from gradtide.launch.messages import EVENTS, Ended, Failure, Forward, Ready, Start, receive, send
from gradtide.launch.nodes.node import Hear, NodeGone
from gradtide.launch.target import Target

__all__ = ["BeginServer", "LocalNode", "ServerProcess", "fresh_server"]

_TIDY_S = 5.0  # how long a worker whose script has failed may take to leave
_GONE_S = 5.0
# What the fork server runs. The folder that Python puts first for -c is not one that a script would see.
_SERVE = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from gradtide.launch.forkserver import main; main(sys.argv[1:])"
)


class ServerProcess(Protocol):
    """The fork server's, as subprocess.Popen has it."""

    returncode: Any

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


# Starts the fork server with its two sockets. The other two are our ends of them, for one that is forked to close.
BeginServer = Callable[[socket.socket, socket.socket, tuple[socket.socket, ...]], ServerProcess]


def fresh_server(target: Target, preload: str, variables: Mapping[str, str]) -> BeginServer:
    """A Python of its own. `variables`: of the environment, which workers have too."""

    def begin(control: socket.socket, reports: socket.socket, ours: tuple[socket.socket, ...]) -> ServerProcess:
        descriptors = control.fileno(), reports.fileno()
        return subprocess.Popen(
            [sys.executable, "-c", _SERVE, *map(str, descriptors), preload, *target.as_arguments()],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,  # a terminal's Ctrl-C reaches us alone, and workers then once
            env=with_variables(variables),
        )

    return begin


class LocalNode:
    """Making it begins to load torch. `open_output(rank)` gives where a worker is to write."""

    def __init__(self, begin: "BeginServer", open_output: Callable[[int], tuple[int, int]], hear: Hear) -> None:
        self.name = ""
        self.ready = self.gone = False
        self._open_output, self._hear = open_output, hear
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports.setblocking(False)
        with control, reports:
            self.process = begin(control, reports, (self._control, self._reports))

    def watch(self, selector: selectors.BaseSelector) -> None:
        """From now on what it says is heard, in the loop that has this selector."""
        selector.register(self._control, selectors.EVENT_READ, self._hear_server)
        selector.register(self._reports, selectors.EVENT_READ, self._hear_workers)

    def start(self, rank: int, variables: Mapping[str, str]) -> None:
        descriptors = self._open_output(rank)
        with contextlib.suppress(OSError):  # the fork server is gone, and the next turn will notice
            send(self._control, Start(rank, dict(variables)), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def forward(self, number: int, ranks: tuple[int, ...], grace_s: float) -> None:
        with contextlib.suppress(OSError):
            send(self._control, Forward(number, ranks, grace_s))

    def kill(self) -> None:
        self.process.kill()

    def _hear_server(self) -> None:
        received = receive(self._control, EVENTS)
        self._hear_workers()  # what a worker said, it said before its end
        if received is None:
            if not self.gone:
                self.gone = True
                self._hear(NodeGone("the process that makes workers has ended"))
        elif isinstance(received[0], Ready):
            self.ready = True
            self._hear(received[0])
        elif isinstance(received[0], Ended):
            self._hear(received[0])

    def _hear_workers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while received := receive(self._reports, EVENTS):
                failure = received[0]
                assert isinstance(failure, Failure)
                self.forward(0, (failure.rank,), _TIDY_S)
                self._hear(failure)

    def close(self) -> None:
        """Ends whatever is left: the fork server does so when it finds its socket closed."""
        self._control.close()
        try:
            self.process.wait(_GONE_S)
        except (subprocess.TimeoutExpired, TimeoutError):
            self.process.kill()
            self.process.wait()
        self._reports.close()
