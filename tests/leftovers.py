"""No process outlives the test that started it: what is left is killed, and the test fails. A plugin of pytest's.

This process becomes the parent of everything below it whose own parent has gone, so nothing gets out of sight. What
fixtures of a module or of the session started may stay; multiprocessing's own helpers too.
"""

import contextlib
import ctypes
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 10.0  # for what is told to end and does not wait to be seen ending

Known = tuple[int, str]  # a process, and when it was started: its number alone may come again


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def restore_signals() -> None:
    """What a shell's `&` or nohup has this process ignore must not be ignored by the programs that tests start.

    Only SIGINT then ends this process itself: a handler that does nothing keeps it deaf to the others, and is not
    passed on to programs.
    """
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: _do_nothing, signal.SIGQUIT: _do_nothing}
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _do_nothing(number: int, frame: object) -> None:
    pass


def descendants() -> set[Known]:
    """The processes below this one that live."""
    found: set[Known] = set()
    left = [os.getpid()]
    while left:
        for pid in _children(left.pop()):
            state, start = _state(pid)
            if state not in "ZX":
                found.add((pid, start))
                left.append(pid)
    return found


def end(known: Iterable[Known]) -> None:
    for pid, start in known:
        if _state(pid)[1] == start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_all() -> None:
    """Until nothing is left below this process: what is killed may have children that come to us only then."""
    while left := descendants():
        end(left)
        time.sleep(0.01)
    bury(set())


def bury(mourned: set[Known]) -> None:
    """Children that have ended are looked at, as init would, but for those that somebody else will look at."""
    for pid in _children(os.getpid()):
        state, start = _state(pid)
        if state == "Z" and (pid, start) not in mourned:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def _state(pid: int) -> tuple[str, str]:
    """Its state, and when it was started; X if it is gone. The name before them may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", ""
    return fields[0], fields[19]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""


# --- the plugin ---

_shared: set[Known] = set()  # what fixtures of more than one test have started
_before: set[Known] = set()  # what was there when this test began


def share(pid: int) -> None:
    """This process serves more than one test, whoever has started it."""
    _shared.add((pid, _state(pid)[1]))


def pytest_configure(config: pytest.Config) -> None:
    adopt_orphans()
    restore_signals()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # fixtures are ended then too


def pytest_unconfigure(config: pytest.Config) -> None:
    end_all()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    before = descendants()
    try:
        return (yield)
    finally:
        _shared.update(descendants() - before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    _before.clear()
    _before.update(descendants())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        result = yield
    finally:
        left = _left_behind()
        said = [_command(pid) for pid, _ in left]
        end(left)
        bury(_before | _shared)
    if left:
        pytest.fail("\n".join([f"{len(left)} processes were left behind, and killed:", *said]), pytrace=False)
    return result


def _left_behind() -> set[Known]:
    """What this test has started and has not ended; what is about to end is waited for."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        left = {known for known in descendants() - _before - _shared if known[0] not in _helpers()}
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.01)


def _helpers() -> tuple[int | None, int | None]:
    """The processes that multiprocessing starts once, for all."""
    return (
        multiprocessing.forkserver._forkserver._forkserver_pid,  # type: ignore[attr-defined]
        multiprocessing.resource_tracker._resource_tracker._pid,  # type: ignore[attr-defined]
    )
