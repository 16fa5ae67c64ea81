"""From SIGKILL to the next step: the store with a replica against torchrun, torchft and a Ray actor, in one run.

Each loses a process that holds parameters and trains on. The store's worker resends to the replica; torchrun starts all
ranks again from a checkpoint; torchft's other replica goes on without the one that died; Ray starts the actor again,
which reads its checkpoint. torchft and Ray take part where they are installed.

Or process groups alone, whose members change in place as torch can from 2.14 on: gradtide's beside Gloo's.
"""

import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import torch
import torch.distributed as dist

from gradtide.bench.peers.recovery_ranks import ELEMENTS
from gradtide.bench.peers.recovery_rivals import CALM_S, HUNG_S, RayActor, ReconfiguredGroup, Torchft, Torchrun
from gradtide.errors import ConfigError
from gradtide.store.client.store import Store, connect
from gradtide.store.local.servers import LocalServers, local_servers
from gradtide.store.rules.updates import update

__all__ = ["RecoveryResult", "bench_recovery"]


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """One contender: seconds from each kill to the next step; HUNG_S where there was none."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def hung(self) -> int:
        return sum(seconds >= HUNG_S for seconds in self.seconds)


def bench_recovery(kills: int, tell: Callable[[str], None], *, groups: bool = False) -> list[RecoveryResult]:
    """Each is killed once a round, in turn. `groups`: process groups that are reconfigured, instead of stores."""
    if kills < 1:
        raise ConfigError("at least one kill is needed")
    if groups and not hasattr(dist, "_reconfigure"):
        raise ConfigError(
            f"torch {torch.__version__} can't change the members of a group of Gloo's; --groups needs 2.14 or newer"
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-")))
        contenders = _groups(folder) if groups else _stores(folder)
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for name, contender in contenders.items():
            tell(f"starting {name}")
            stack.enter_context(contender)
        for i in range(kills):
            for name, contender in contenders.items():
                tell(f"kill {i + 1} of {kills}: {name}")
                found[name].append(contender.kill())
    return [RecoveryResult(name, tuple(seconds)) for name, seconds in found.items()]


def _groups(folder: Path) -> dict[str, "Contender"]:
    return {f"{name} group": ReconfiguredGroup(folder / name, name) for name in ("gradtide", "gloo")}


def _stores(folder: Path) -> dict[str, "Contender"]:
    contenders: dict[str, Contender] = {
        "gradtide, 1 replica": Ours(),
        "torchrun, elastic restart": Torchrun(folder / "torchrun"),
    }
    if importlib.util.find_spec("torchft"):
        contenders["torchft, 2 replicas"] = Torchft(folder / "torchft")
    if importlib.util.find_spec("ray"):
        contenders["Ray actor, checkpoint"] = RayActor(folder / "ray")
    return contenders


class Ours:
    """Two servers with a replica of each other, and a worker that pushes and pulls."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._random = Random(0)

    def __enter__(self) -> "Ours":
        self._servers: LocalServers = self._stack.enter_context(local_servers(2, replicas=1))
        self._store: Store = self._stack.enter_context(connect(self._servers.address))
        self._store.init({"a": torch.zeros(ELEMENTS), "b": torch.zeros(ELEMENTS)}, update=update("add"))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def kill(self) -> float:
        gradients, until_s = [torch.ones(ELEMENTS)] * 2, time.monotonic() + CALM_S
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


Contender = Ours | Torchrun | Torchft | RayActor | ReconfiguredGroup
