"""How long after the command each launcher's workers have torch loaded and have found each other."""

import importlib.util
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gradtide.bench.machine import describe_machine
from gradtide.bench.peers import READY_S, PeerFailed
from gradtide.errors import ConfigError

__all__ = ["Figure", "bench_launch", "content", "show"]

_PEER = ["-m", "gradtide.bench.launch_peer"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds from the command to the last worker's word that it is ready."""

    name: str
    seconds: float  # median
    seconds_min: float
    seconds_max: float
    ratio: float  # of the first contender's median to this one's: how many times as fast


def bench_launch(workers: int, rounds: int, tell: Callable[[str], None]) -> list[Figure]:
    """Every contender starts once a round, after one start that does not count."""
    if workers < 1 or rounds < 1:
        raise ConfigError("there must be 1 worker and 1 round or more")
    contenders = _contenders(workers)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        names = list(contenders) if number % 2 else list(reversed(contenders))
        for name in names:
            tell(f"round {number} of {rounds}: {name}")
            took_s = _seconds_until_ready(name, contenders[name], workers)
            if number:
                seconds[name].append(took_s)
    first = median(next(iter(seconds.values())))
    return [Figure(name, median(s), min(s), max(s), first / median(s)) for name, s in seconds.items()]


def _contenders(workers: int) -> dict[str, list[str]]:
    """Name in the table -> arguments for Python. The first is the measure."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(workers)]
    run = ["-m", "gradtide", "run", "--workers", str(workers)]
    chosen = {
        "torchrun, Gloo group": [*torchrun, *_PEER, "gloo"],
        "torchrun, gradtide group": [*torchrun, *_PEER, "gradtide"],
        "gradtide run, gradtide group": [*run, *_PEER, "gradtide"],
        "gradtide run, Gloo group": [*run, *_PEER, "gloo"],
        "gradtide run --no-preload, gradtide group": [*run, "--no-preload", *_PEER, "gradtide"],
    }
    if importlib.util.find_spec("ray"):
        chosen["Ray actors, gradtide group"] = [*_PEER, "ray", str(workers)]
    return chosen


def _seconds_until_ready(name: str, arguments: list[str], workers: int) -> float:
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        output, took_s = b"", 0.0
        while output.count(b"ready") < workers:
            waited_s = READY_S - (time.perf_counter() - started)
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, waited_s))
            piece = os.read(process.stdout.fileno(), 4096) if readable else b""
            took_s = time.perf_counter() - started
            if not piece:
                process.terminate()
                raise PeerFailed(f"{name}: its workers were not ready within {took_s:.0f} s; try the command by hand")
            output += piece
    return took_s


def content(settings: dict[str, Any], figures: list[Figure]) -> dict[str, Any]:
    return {
        "settings": settings,
        "machine": describe_machine().as_dict(),
        "results": [asdict(figure) for figure in figures],
    }


def show(title: str, figures: list[Figure]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "s", "min", "max", f"x {figures[0].name}", title=title)
    for figure in figures:
        numbers = figure.seconds, figure.seconds_min, figure.seconds_max, figure.ratio
        table.add_row(figure.name, *(f"{number:.2f}" for number in numbers))
    Console().print(table)
