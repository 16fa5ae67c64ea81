"""A Gloo process group of our own, and waiting on it that looks around: whether ranks are lost, whether Ctrl-C came."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist

from gradtide.transport.hosts import read_key

__all__ = ["Gloo", "open_gloo"]

_LOOK_S = 0.1


class Gloo:
    """The process group, which torch.distributed's global state knows nothing of, and its connections.

    Gloo has no call that ends a wait, and who has received half a message is not even woken when the connection breaks
    under a message that leaves. So another thread waits, and who asked for the wait looks around and may walk away.
    Nothing must arrive in its tensors then: we hold a second descriptor of each connection, to shut it.
    """

    def __init__(self, group: Any, connections: list[socket.socket]) -> None:
        self.group, self._connections = group, connections
        self._idle: list[_Waiter] = []

    def wait(self, work: Any, timeout_s: float, check: Callable[[], None]) -> None:
        """Waits for a message; meanwhile calls check now and then, which may raise."""
        try:
            waiter = self._idle.pop()  # several threads may wait at once
        except IndexError:
            waiter = _Waiter()
        waiter.begin(work, timeout_s)
        while not waiter.done.wait(_LOOK_S):
            check()
        error, waiter.error = waiter.error, None
        self._idle.append(waiter)
        if error is not None:
            raise error

    def interrupt(self) -> None:
        """Lets nothing arrive any more, and ends what waits for it."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """What was sent still arrives."""
        self.group = None
        while self._idle:
            self._idle.pop().end()
        while self._connections:
            self._connections.pop().close()


class _Waiter(threading.Thread):
    """Waits for one message after the other. One that was walked away from ends when Gloo lets it."""

    def __init__(self) -> None:
        super().__init__(name="gradtide-gloo", daemon=True)
        self.done = threading.Event()
        self.error: RuntimeError | None = None
        self._works: SimpleQueue[tuple[Any, timedelta] | None] = SimpleQueue()
        self.start()

    def begin(self, work: Any, timeout_s: float) -> None:
        self.done.clear()
        self._works.put((work, timedelta(seconds=timeout_s)))

    def end(self) -> None:
        self._works.put(None)
        self.join()

    def run(self) -> None:
        while (task := self._works.get()) is not None:
            try:
                task[0].wait(task[1])
            except RuntimeError as error:
                self.error = error.with_traceback(None)
            del task
            self.done.set()


def open_gloo(store: Any, rank: int, size: int, address: str, timeout_s: float) -> Gloo:
    """All ranks of the job, each at its local address."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [gloo.create_device(hostname=address)]
    before = _open_sockets()
    group = gloo(store, rank, size, options)
    fresh = [descriptor for name, descriptor in _open_sockets().items() if name not in before]
    found = [connection for descriptor in fresh if (connection := _connected(descriptor))]
    try:
        return Gloo(group, _between_ranks(store, rank, size, found, timeout_s))
    except BaseException:
        for connection in found:
            connection.close()
        raise


def _open_sockets() -> dict[str, int]:
    """This process's sockets: a descriptor of each."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("socket:"):
                found[name] = int(descriptor)
    return found


def _connected(descriptor: int) -> socket.socket | None:
    """A socket of our own over a connection."""
    connection = None
    try:
        connection = socket.socket(fileno=os.dup(descriptor))
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
            return connection
    except OSError:
        pass
    if connection is not None:
        connection.close()
    return None


def _between_ranks(
    store: Any, rank: int, size: int, found: list[socket.socket], timeout_s: float
) -> list[socket.socket]:
    """Those that two ranks opened to each other just now: another thread of this process may have opened some too."""
    store.set(f"connections/{rank}", " ".join(_name(connection.getsockname()) for connection in found))
    theirs: set[str] = set()
    for other in range(size):
        theirs |= set(read_key(store, f"connections/{other}", other, timeout_s).split())
    kept = [connection for connection in found if _name(connection.getpeername()) in theirs]
    for connection in found:
        if connection not in kept:
            connection.close()
    return kept


def _name(address: Any) -> str:
    return f"{address[0]}/{address[1]}"
