"""Of a store's real processes, for tests that kill, stop and wait for them."""

import os
import signal
import time

import gradtide

# Where servers are killed, which their connections tell: one that a busy machine holds up for 2 s is not dead, too.
LONG_LEASE_S = 20.0


def pid_of(servers, name):
    return next(process.pid for process in servers.processes if process.name == name)


def wait_until(condition, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def wait_until_copied(address):
    """Until every shard of a new store has its replicas: one that is killed before has nobody to take over."""
    with gradtide.connect(address) as store:
        wait_until(lambda: all(store.table.backups))


class Killer:
    """Kills one process after the other: each only when the last is replaced and every shard has its copies again."""

    def __init__(self, servers):
        self._servers, self._before, self._dead = servers, None, None

    def wait_until_whole(self, store, timeout_s=60):
        """A table of before the last kill looks whole, too."""
        if self._dead is not None:
            self._servers.wait_until_healed(self._dead, timeout_s)
        wait_until(lambda: store.table.servers != self._before and all(store.table.backups), timeout_s)

    def kill(self, store, name):
        self.wait_until_whole(store)
        if name != "coordinator":  # the table stays as it is
            self._before = store.table.servers
        self._dead = pid_of(self._servers, name)
        os.kill(self._dead, signal.SIGKILL)
