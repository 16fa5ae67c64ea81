"""Of a store's real processes, for tests that kill, stop and wait for them."""

import os
import signal
import time


def pid_of(servers, name):
    return next(process.pid for process in servers.processes if process.name == name)


def wait_until(condition, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Killer:
    """Kills one server after the other; the next only when all that the one before held has its copies again."""

    def __init__(self, servers):
        self._servers, self._before = servers, None

    def wait_until_whole(self, store, timeout_s=60):
        """A table of before the last kill looks whole, too."""
        wait_until(lambda: store.table.servers != self._before and all(store.table.backups), timeout_s)

    def kill(self, store, name):
        self.wait_until_whole(store)
        self._before = store.table.servers
        os.kill(pid_of(self._servers, name), signal.SIGKILL)
