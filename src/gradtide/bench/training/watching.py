"""What a dashboard costs the run that it shows: a training with a reader of the page's stream and without, in turn."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from gradtide.bench import report
from gradtide.bench.contender import ContenderFailed
from gradtide.bench.training.turns import BLOCK, Comparison, MeasuredTurn, Training, compare, seconds_a_sample, training
from gradtide.chaos.footprint import cpu_seconds
from gradtide.errors import ConfigError
from gradtide.processes.ready import can_read

__all__ = ["ReaderCost", "bench_watching"]

WAYS = ALONE, READ = "nobody looks", "a reader of the dashboard's stream"
_READY_S = 120.0
_SETTLE_S = 0.6  # in which it catches up with what happened while it was stopped
_RUN = "watched"


@dataclass(frozen=True, slots=True)
class ReaderCost:
    """What a reader costs."""

    rate: Comparison  # samples per second, with a reader to without
    cpu: Comparison  # CPU seconds a sample of all processes of the training, with a reader to without
    dashboard_cpu: float  # what the dashboard itself computes, as a part of one core
    store_cpu: float  # what servers and coordinator compute more, as a part of one core
    messages: int  # that the reader was sent


@dataclass(slots=True)
class _Dashboard:
    pid: int
    messages: int = 0  # that its reader was sent
    cpu_s: float = 0.0  # in the turns in which somebody read
    read_s: float = 0.0  # how long these took

    def let(self, run: bool) -> None:
        """Stopped, it asks nobody and takes no time, and nothing has to be started again for the next turn."""
        os.kill(self.pid, signal.SIGCONT if run else signal.SIGSTOP)
        time.sleep(_SETTLE_S)


def bench_watching(
    blocks: int, turn_s: float, tell: Callable[[str], None]
) -> tuple[list[report.Row], ReaderCost, dict[str, list[float]]]:
    """Samples per second of two workers with two servers, which train on; the dashboard is a process of its own."""
    if blocks < 2 or turn_s < 1.0:
        raise ConfigError("there must be 2 blocks and turns of 1 s, or more")
    turns: list[list[MeasuredTurn]] = []
    with (
        tempfile.TemporaryDirectory(prefix="gradtide-bench-") as folder,
        training(Path(folder), _RUN) as trained,
        _dashboard(Path(folder) / _RUN) as dashboard,
    ):
        for number in range(blocks):
            tell(f"block {number + 1} of {blocks}")
            turns.append([_turn(trained, dashboard, way == 1, turn_s) for way in BLOCK])
    seconds = seconds_a_sample(turns, WAYS)
    return report.rows(seconds, 1), _cost(turns, dashboard), seconds


def _turn(trained: Training, dashboard: _Dashboard, read: bool, turn_s: float) -> MeasuredTurn:
    dashboard.let(run=read)
    cpu_s, began_s = cpu_seconds(dashboard.pid), time.monotonic()
    turn = trained.turn(turn_s)
    if read:
        dashboard.cpu_s += cpu_seconds(dashboard.pid) - cpu_s
        dashboard.read_s += time.monotonic() - began_s
    return turn


def _cost(blocks: list[list[MeasuredTurn]], dashboard: _Dashboard) -> ReaderCost:
    alone, read = (
        [turn for block in blocks for i, turn in zip(BLOCK, block, strict=True) if i == way] for way in (0, 1)
    )
    return ReaderCost(
        compare(blocks, lambda turn: turn.samples / turn.seconds),
        compare(blocks, lambda turn: turn.cpu_s / turn.samples),
        dashboard.cpu_s / dashboard.read_s,
        (_store_cpu_a_sample(read) - _store_cpu_a_sample(alone)) * _total(read, "samples") / _total(read, "seconds"),
        dashboard.messages,
    )


def _store_cpu_a_sample(turns: list[MeasuredTurn]) -> float:
    return _total(turns, "store_cpu_s") / _total(turns, "samples")


def _total(turns: list[MeasuredTurn], field: str) -> float:
    return sum(float(getattr(turn, field)) for turn in turns)


@contextmanager
def _dashboard(run: Path) -> Iterator[_Dashboard]:
    """The dashboard's process, and somebody who reads what its page would be sent."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gradtide.dashboard.serve", str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    dashboard, begun = _Dashboard(process.pid), threading.Event()
    try:
        link = process.stdout.readline().decode().strip() if can_read([process.stdout], _READY_S) else ""
        if not link:
            raise ContenderFailed("the dashboard did not start; its messages are above")
        thread = threading.Thread(target=_read, args=(link, dashboard, begun), daemon=True)
        thread.start()
        if not begun.wait(_READY_S):
            raise ContenderFailed(f"the dashboard sent nothing within {_READY_S:g} s")
        yield dashboard
    finally:
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
    thread.join(30)


def _read(link: str, dashboard: _Dashboard, begun: threading.Event) -> None:
    parts = urlsplit(link)
    server = HTTPConnection(parts.hostname or "", parts.port, timeout=_READY_S)
    server.request("GET", f"/?{parts.query}")
    with server.getresponse() as page:
        cookie = (page.getheader("set-cookie") or "").partition(";")[0]
        page.read()
    server.request("GET", "/stream", headers={"cookie": cookie})
    with server.getresponse() as stream:
        while line := stream.readline():
            if line.startswith(b"data:"):
                dashboard.messages += 1
                begun.set()
    server.close()
