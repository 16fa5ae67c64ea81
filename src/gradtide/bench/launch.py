"""How long after the command each launcher's workers have torch loaded and have found each other."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from gradtide.bench.contender import READY_S, ContenderFailed
from gradtide.errors import ConfigError
from gradtide.processes.ready import can_read

__all__ = ["LaunchFigure", "bench_launch"]

_PEER = ["-m", "gradtide.bench.peers.launch"]


@dataclass(frozen=True, slots=True)
class LaunchFigure:
    """Seconds from the command to the last worker's word that it is ready."""

    name: str
    seconds: float  # median
    seconds_min: float
    seconds_max: float
    ratio: float  # of the first contender's median to this one's: how many times as fast


def bench_launch(workers: int, rounds: int, tell: Callable[[str], None]) -> list[LaunchFigure]:
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
    return [LaunchFigure(name, median(s), min(s), max(s), first / median(s)) for name, s in seconds.items()]


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
            readable = can_read([process.stdout], waited_s)
            piece = os.read(process.stdout.fileno(), 4096) if readable else b""
            took_s = time.perf_counter() - started
            if not piece:
                process.terminate()
                raise ContenderFailed(
                    f"{name}: its workers were not ready within {took_s:.0f} s; try the command by hand"
                )
            output += piece
    return took_s
