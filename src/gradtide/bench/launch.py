"""How long after the command each launcher's workers have torch loaded and have found each other, and how long until
they have first added up: what is put off when a group is made is paid for then.

Python's bytecode is kept, as of what pip installs, whatever the surroundings say: a checkout that is compiled anew at
each start takes 0.1 s longer.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median

from gradtide.bench.contender import READY_S, ContenderFailed
from gradtide.environment import with_variables
from gradtide.errors import ConfigError
from gradtide.processes.ready import can_read

__all__ = ["LaunchFigure", "bench_launch", "bench_launch_on_ray"]

_END_S = 10.0
_PEER = ["-m", "gradtide.bench.peers.launch"]
_ALONE = {"torch", "ray", "ray-actors"}  # these peers never add up


@dataclass(frozen=True, slots=True)
class LaunchFigure:
    """Seconds from the command to the last worker's word that it is ready, and to the end of its first all-reduce."""

    name: str
    seconds: float  # median
    seconds_min: float
    seconds_max: float
    ratio: float  # of the first contender's median to this one's: how many times as fast
    added: float | None = None  # median, until the first all-reduce is over; None: there is no group


def bench_launch(workers: int, rounds: int, tell: Callable[[str], None]) -> list[LaunchFigure]:
    """Every contender starts once a round, after one start that does not count."""
    _check(workers, rounds)
    return _measure(_contenders(workers), workers, rounds, tell)


def bench_launch_on_ray(workers: int, rounds: int, address: str, tell: Callable[[str], None]) -> list[LaunchFigure]:
    """The same on a Ray cluster: that at an address, or, without one, one of this machine alone for as long."""
    _check(workers, rounds)
    with _cluster(address, workers) as where:
        run = ["-m", "gradtide", "run", "--engine", "ray", "--address", where, "--workers", str(workers)]
        contenders = {
            "Ray actors that import torch": [*_PEER, "ray-actors", str(workers), where],
            "gradtide run --engine ray": [*run, *_PEER, "torch"],
            "gradtide run --engine ray, gradtide group": [*run, *_PEER, "gradtide"],
        }
        return _measure(contenders, workers, rounds, tell)


def _check(workers: int, rounds: int) -> None:
    if workers < 1 or rounds < 1:
        raise ConfigError("there must be 1 worker and 1 round or more")


@contextmanager
def _cluster(address: str, workers: int) -> Iterator[str]:
    if not importlib.util.find_spec("ray"):
        raise ConfigError("Ray is not installed here; say: pip install 'gradtide[ray]'")
    if address:
        yield address
        return
    import ray

    started = ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield started.address_info["gcs_address"]
    finally:
        ray.shutdown()


def _measure(
    contenders: dict[str, list[str]], workers: int, rounds: int, tell: Callable[[str], None]
) -> list[LaunchFigure]:
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    added: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        names = list(contenders) if number % 2 else list(reversed(contenders))
        for name in names:
            tell(f"round {number} of {rounds}: {name}")
            words = [b"ready"] if _peer_of(contenders[name]) in _ALONE else [b"ready", b"added"]
            took_s = _seconds_until(words, name, contenders[name], workers)
            if number:
                seconds[name].append(took_s[0])
                added[name] += took_s[1:]
    first = median(next(iter(seconds.values())))
    return [
        LaunchFigure(name, median(s), min(s), max(s), first / median(s), median(added[name]) if added[name] else None)
        for name, s in seconds.items()
    ]


def _contenders(workers: int) -> dict[str, list[str]]:
    """Name in the table -> arguments for Python. The first is the measure."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(workers)]
    run = ["-m", "gradtide", "run", "--workers", str(workers)]
    chosen = {
        "torchrun, Gloo group": [*torchrun, *_PEER, "process-group", "gloo"],
        "torchrun, gradtide group": [*torchrun, *_PEER, "process-group", "gradtide"],
        "gradtide run, gradtide group": [*run, *_PEER, "gradtide"],
        "gradtide run, Gloo group": [*run, *_PEER, "process-group", "gloo"],
        "gradtide run --no-preload, gradtide group": [*run, "--no-preload", *_PEER, "gradtide"],
    }
    if importlib.util.find_spec("ray"):
        chosen["Ray actors, gradtide group"] = [*_PEER, "ray", str(workers)]
    return chosen


def _seconds_until(words: list[bytes], name: str, arguments: list[str], workers: int) -> list[float]:
    """Until all workers have said each word. In an empty folder: that of a job on Ray travels to its nodes."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, _started([sys.executable, *arguments], folder) as process:
        assert process.stdout is not None
        output, reached = b"", list[float]()
        while len(reached) < len(words):
            waited_s = READY_S - (time.perf_counter() - started)
            readable = can_read([process.stdout], waited_s)
            piece = os.read(process.stdout.fileno(), 4096) if readable else b""
            took_s = time.perf_counter() - started
            if not piece:
                raise ContenderFailed(
                    f"{name}: its workers were not ready within {took_s:.0f} s; try the command by hand"
                )
            output += piece
            reached += [took_s for word in words[len(reached) :] if output.count(word) >= workers]
    return reached


def _peer_of(arguments: list[str]) -> str:
    return arguments[arguments.index(_PEER[-1]) + 1]


@contextmanager
def _started(command: list[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own: a terminal's Ctrl-C reaches us alone, and it then ends what it has started."""
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    around = with_variables({"PYTHONDONTWRITEBYTECODE": ""})
    process = subprocess.Popen(
        command, stdin=quiet, stdout=pipe, stderr=quiet, cwd=folder, env=around, start_new_session=True
    )
    with process:
        try:
            yield process
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
