"""Torch's stores, in which ranks of several machines find each other: one a generation, in a process beside the head.

Torch takes seconds to load, in which the head could answer nobody; so a process of its own does it, which ends when the
head does. One store is always kept at hand.
"""

import os
import selectors
import subprocess
import sys
from typing import Any

from gradtide.environment import with_variables

__all__ = ["TorchStores"]

_SERVE = "from gradtide.launch.nodes.stores import serve; serve()"
_LOCAL = "127.0.0.1"  # by which the process reaches its own stores; they listen at all addresses


class TorchStores:
    """As the head sees them. `ready`: whether one can be had at once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=with_variables({"TORCH_CPP_LOG_LEVEL": "ERROR"}),  # it warns of hosts that have no name, as many have
        )
        self._spare: list[int] = []  # ports of stores that nobody has yet
        self._rest = b""
        self._say("open")

    def watch(self, selector: selectors.BaseSelector) -> None:
        assert self._process.stdout is not None
        stdout = self._process.stdout
        selector.register(stdout, selectors.EVENT_READ, lambda: self._hear(selector))

    @property
    def ready(self) -> bool:
        return bool(self._spare)

    @property
    def gone(self) -> bool:
        return self._process.poll() is not None

    def take(self) -> int:
        """The port of a store that nobody has used."""
        self._say("open")
        return self._spare.pop()

    def give_back(self, port: int) -> None:
        """Closes it: whoever still waits for something there is told so at once."""
        self._say(f"close {port}")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError:  # it is gone, and says so by its end
            pass

    def _hear(self, selector: selectors.BaseSelector) -> None:
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 4096)
        if not data:
            selector.unregister(self._process.stdout)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._spare += map(int, lines)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()  # it holds nothing that anybody wants
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def serve() -> None:
    """In that process: until the head is gone."""
    import torch.distributed as dist

    make: Any = vars(dist)["TCPStore"]  # torch does not declare it
    stores: dict[int, Any] = {}
    for line in sys.stdin:
        word, _, port = line.strip().partition(" ")
        if word == "open":
            store = make(_LOCAL, 0, is_master=True, wait_for_workers=False)
            stores[store.port] = store
            print(store.port, flush=True)
        else:
            stores.pop(int(port), None)
    os._exit(0)
