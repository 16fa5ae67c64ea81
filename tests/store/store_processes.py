"""Of a store's real processes, for tests that kill, stop and wait for them."""

import time


def pid_of(servers, name):
    return next(process.pid for process in servers.processes if process.name == name)


def wait_until(condition, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
