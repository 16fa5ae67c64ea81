"""What a dashboard costs the run that it shows: a training with a reader of the page's stream and without, in turn."""

import json
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
from statistics import quantiles
from urllib.parse import urlsplit

from gradtide.bench import report
from gradtide.bench.contender import ContenderFailed
from gradtide.errors import ConfigError
from gradtide.processes.ready import can_read

__all__ = ["ReaderCost", "bench_watching"]

ALONE, READ = "nobody looks", "a reader of the dashboard's stream"
_READY_S = 120.0
_RUN = "watched"


@dataclass(frozen=True, slots=True)
class ReaderCost:
    """What a reader costs, from turns beside each other: training with it, as a share of training without."""

    median: float
    least: float  # of the middle half of the turns
    most: float
    messages: int  # that the reader was sent


def bench_watching(
    rounds: int, turn_s: float, tell: Callable[[str], None]
) -> tuple[list[report.Row], ReaderCost, dict[str, list[float]]]:
    """Samples per second of two workers with two servers, which train on; the dashboard is a process of its own."""
    if rounds < 2 or turn_s < 1.0:
        raise ConfigError("there must be 2 rounds and turns of 1 s, or more")
    seconds: dict[str, list[float]] = {ALONE: [], READ: []}
    messages = 0
    with tempfile.TemporaryDirectory(prefix="gradtide-bench-") as folder, _training(Path(folder)) as steps:
        for number in range(rounds):
            for name in (ALONE, READ) if number % 2 == 0 else (READ, ALONE):
                tell(f"round {number + 1} of {rounds}: {name}")
                if name == ALONE:
                    seconds[name].append(_seconds_a_sample(steps, turn_s))
                    continue
                with _reader(Path(folder) / _RUN) as told:
                    seconds[name].append(_seconds_a_sample(steps, turn_s))
                messages += told[0]
    low, middle, high = quantiles([a / b for a, b in zip(seconds[ALONE], seconds[READ], strict=True)], n=4)
    return report.rows(seconds, 1), ReaderCost(middle, low, high, messages), seconds


@contextmanager
def _training(folder: Path) -> Iterator[Path]:
    """A run that goes on; gives the file where its first worker notes each step."""
    command = [sys.executable, "-m", "gradtide", "train", "--workers", "2", "--servers", "2", "--epochs", "1000000"]
    process = subprocess.Popen(
        [*command, "--name", _RUN, "--output", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    steps, deadline_s = folder / _RUN / "worker-0.jsonl", time.monotonic() + _READY_S
    try:
        while not (steps.exists() and len(_done_since(steps, 0)) > 10):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise ContenderFailed(f"the training did not begin within {_READY_S:g} s; its messages are above")
            time.sleep(0.1)
        yield steps
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _seconds_a_sample(steps: Path, turn_s: float) -> float:
    begun = steps.stat().st_size
    time.sleep(turn_s)  # the turn itself
    done = _done_since(steps, begun)
    if len(done) < 3:
        raise ContenderFailed(f"fewer than three steps were taken within {turn_s:g} s; make turns longer")
    return float(done[-1]["at_s"] - done[0]["at_s"]) / sum(step["samples"] for step in done[1:])


def _done_since(steps: Path, begun: int) -> list[dict[str, float]]:
    with steps.open("rb") as file:
        file.seek(begun)
        lines = file.read().split(b"\n")[:-1]  # the last may be half written, the first too
    return [json.loads(line) for line in lines if line.startswith(b"{") and b'"event": "BatchDone"' in line]


@contextmanager
def _reader(run: Path) -> Iterator[list[int]]:
    """The dashboard's process, and somebody who reads what its page would be sent; gives how much that has been."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gradtide.dashboard.serve", str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    told, begun = [0], threading.Event()
    try:
        link = process.stdout.readline().decode().strip() if can_read([process.stdout], _READY_S) else ""
        if not link:
            raise ContenderFailed("the dashboard did not start; its messages are above")
        thread = threading.Thread(target=_read, args=(link, told, begun), daemon=True)
        thread.start()
        if not begun.wait(_READY_S):
            raise ContenderFailed(f"the dashboard sent nothing within {_READY_S:g} s")
        yield told
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
    thread.join(30)


def _read(link: str, told: list[int], begun: threading.Event) -> None:
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
                told[0] += 1
                begun.set()
    server.close()
