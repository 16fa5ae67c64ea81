"""From SIGKILL to the next step: the store with a replica against torchrun's elastic restart, in one run.

Of the store a server is killed that holds parameters, of torchrun a rank that does; both train on: the store's worker
resends to the replica, torchrun starts all ranks again from a checkpoint. (torchft and Ray are not measured.)
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import torch

from gradtide.bench.recovery_peer import ELEMENTS
from gradtide.errors import ConfigError, PeerTimeout
from gradtide.store.client import Store, connect
from gradtide.store.local import LocalServers, local_servers
from gradtide.store.updates import update

__all__ = ["HUNG_S", "Recovery", "bench_recovery"]

HUNG_S = 30.0  # whoever is not back by then counts as hung
_CALM_S = 1.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """One contender: seconds from each kill to the next step; HUNG_S where there was none."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def bench_recovery(kills: int, tell: Callable[[str], None]) -> list[Recovery]:
    """Each is killed once a round, in turn."""
    if kills < 1:
        raise ConfigError("at least one kill is needed")
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(_Ours()), stack.enter_context(_Torchrun())
        found: dict[str, list[float]] = {"gradtide, 1 replica": [], "torchrun, elastic restart": []}
        for i in range(kills):
            tell(f"kill {i + 1} of {kills}: gradtide")
            found["gradtide, 1 replica"].append(ours.kill())
            tell(f"kill {i + 1} of {kills}: torchrun")
            found["torchrun, elastic restart"].append(theirs.kill())
    return [Recovery(name, tuple(seconds)) for name, seconds in found.items()]


class _Ours:
    """Two servers with a replica of each other, and a worker that pushes and pulls."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._random = Random(0)

    def __enter__(self) -> "_Ours":
        self._servers: LocalServers = self._stack.enter_context(local_servers(2, replicas=1))
        self._store: Store = self._stack.enter_context(connect(self._servers.address))
        self._store.init({"a": torch.zeros(ELEMENTS), "b": torch.zeros(ELEMENTS)}, update=update("add"))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def kill(self) -> float:
        gradients, until_s = [torch.ones(ELEMENTS)] * 2, time.monotonic() + _CALM_S
        while time.monotonic() < until_s or not all(self._store.table.backups):
            self._store.push_pull(["a", "b"], gradients)
        victims = [process for process in self._servers.processes if process.role == "server"]
        victim = self._random.choice(victims)
        begun_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        self._store.push_pull(["a", "b"], gradients)
        seconds = time.monotonic() - begun_s
        self._servers.wait_until_healed(victim.pid)
        return seconds


class _Torchrun:
    """Two ranks under torchrun."""

    def __enter__(self) -> "_Torchrun":
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-recovery-")))
        self._steps = self._folder / "steps"
        self._stack.callback(self._end)
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--max-restarts", "1000", "--monitor-interval", "0.1",
            "-m", "gradtide.bench.recovery_peer", str(self._steps), str(self._folder / "checkpoint"),
        ]  # fmt: skip
        begun_s, quiet = time.monotonic(), subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        if self._wait_for(begun_s, set()) is None:
            raise PeerTimeout(f"torchrun made no step within {HUNG_S:g} s")

    def _end(self) -> None:
        """Its ranks have process groups of their own, so each must be ended."""
        ranks = {process for _, process, _ in self._rows()}
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for rank in ranks:
            if _is_rank(rank, self._folder):
                os.kill(rank, signal.SIGKILL)

    def kill(self) -> float:
        self._wait_for(time.monotonic() + _CALM_S, set())
        rows = self._rows()
        victim = next(process for rank, process, _ in reversed(rows) if rank == 1)
        old = {process for _, process, _ in rows}
        begun_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        step_s = self._wait_for(begun_s, old)
        if step_s is None:
            self._end()
            self._start()
            return HUNG_S
        return step_s - begun_s

    def _wait_for(self, after_s: float, without: set[int]) -> float | None:
        """The first step after a time, by a process that is not among these."""
        deadline_s = time.monotonic() + HUNG_S
        while time.monotonic() < deadline_s:
            found = [at_s for _, process, at_s in self._rows() if at_s > after_s and process not in without]
            if found:
                return min(found)
            time.sleep(0.02)
        return None

    def _rows(self) -> list[tuple[int, int, float]]:
        if not self._steps.exists():
            return []
        with self._steps.open("rb") as file:
            file.seek(max(0, self._steps.stat().st_size - 8192))
            lines = file.read().decode().split("\n")[1:-1]
        rows = [line.split() for line in lines]
        return [(int(row[0]), int(row[1]), float(row[2])) for row in rows if len(row) == 3]


def _is_rank(process: int, folder: Path) -> bool:
    """Is this still the process that we think it is?"""
    try:
        return str(folder) in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False
