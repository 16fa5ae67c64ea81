"""Real servers and workers on this machine, killed and stopped while every worker pushes exact integers.

At the end every sum must be exact: a push that was acknowledged and is missing was lost, one that is in twice was
doubled. Between two faults the store is given time to make its replicas whole again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import quantiles

import torch

from gradtide.errors import ConfigError, GradtideError, PeerTimeout
from gradtide.store.client import Store, connect
from gradtide.store.local import Forks, LocalServers, local_servers
from gradtide.store.messages import Table
from gradtide.store.updates import update
from gradtide.testing.chaos_worker import KEYS, TIMES

__all__ = ["Plan", "Report", "run_chaos"]

_WHOLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do to whom."""

    faults: int = 20
    kinds: tuple[str, ...] = ("kill",)  # of "kill", "stop", "coordinator"
    servers: int = 3
    replicas: int = 1
    workers: int = 4
    pause_s: float = 0.3  # between the store being whole and the next fault
    pushes: int = 0  # go on until there were at least so many
    seed: int = 0
    script: tuple[str, ...] = ()  # a command of the user's instead of workers; {address} is the store's


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    faults: int
    pushes: int
    replicated: int
    lost: int
    doubled: int
    back_s: tuple[float, ...]  # from each fault to the next push, begun after it, that was acknowledged
    whole_s: tuple[float, ...]  # from each fault until every replica was in sync again

    def quantile(self, share: float) -> float:
        times = sorted(self.back_s)
        return quantiles(times, n=100, method="inclusive")[round(share * 100) - 1] if len(times) > 1 else times[0]


def run_chaos(plan: Plan, tell: Callable[[str], None] = lambda text: None, forks: Forks | None = None) -> Report:
    """Start, disturb, count."""
    unknown = set(plan.kinds) - {"kill", "stop", "coordinator"}
    if unknown or not plan.kinds:
        raise ConfigError(f"unknown fault {', '.join(sorted(unknown))!r}; choose from kill, stop and coordinator")
    with ExitStack() as stack:
        servers = stack.enter_context(local_servers(plan.servers, replicas=plan.replicas, forks=forks))
        store = stack.enter_context(connect(servers.address))
        zeros = torch.zeros(max(1, plan.workers), dtype=torch.int64)
        store.init(dict.fromkeys(KEYS, zeros), update=update("add"))
        crew = stack.enter_context(_Crew(plan, servers))
        struck = _disturb(plan, servers, store, crew, tell)
        counts = crew.finish()
        return _count(store, counts, struck, crew.times())


class _Crew:
    """The workers, or the user's script."""

    def __init__(self, plan: Plan, servers: LocalServers) -> None:
        self.script = bool(plan.script)
        self._files = [Path(servers.folder) / f"times-{i}" for i in range(plan.workers)]
        if plan.script:
            commands = [[part.replace("{address}", servers.address) for part in plan.script]]
        else:
            program = [sys.executable, "-m", "gradtide.testing.chaos_worker", servers.address]
            commands = [[*program, str(i), str(plan.workers), str(f)] for i, f in enumerate(self._files)]
        pipe = None if plan.script else subprocess.PIPE
        self.processes = [subprocess.Popen(c, stdin=pipe, stdout=pipe, text=True) for c in commands]

    def __enter__(self) -> "_Crew":
        for process in self.processes if not self.script else ():
            assert process.stdout is not None
            process.stdout.readline()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()

    @property
    def working(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def pushes(self) -> int:
        return sum(f.stat().st_size // TIMES.size for f in self._files if f.exists())

    def finish(self) -> list[dict[str, int]]:
        """Tell them to stop; what each has had acknowledged."""
        if self.script:
            if self.processes[0].wait():
                raise GradtideError(f"the script ended with exit code {self.processes[0].returncode}")
            return []
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        counts = []
        for i, process in enumerate(self.processes):
            assert process.stdout is not None
            line = process.stdout.readline()
            if process.wait() or not line:
                raise GradtideError(f"worker {i} of the chaos failed with exit code {process.returncode}; see above")
            counts.append(json.loads(line))
        return counts

    def times(self) -> list[tuple[float, float]]:
        return [pair for f in self._files if f.exists() for pair in TIMES.iter_unpack(f.read_bytes())]


def _disturb(
    plan: Plan, servers: LocalServers, store: Store, crew: _Crew, tell: Callable[[str], None]
) -> list[tuple[float, float]]:
    """One fault after the other; when each was, and how long until the store was whole again."""
    random, struck = Random(plan.seed), list[tuple[float, float]]()
    while crew.working and (len(struck) < plan.faults or (not crew.script and crew.pushes() < plan.pushes)):
        _wait_until(lambda: _is_whole(store.table))
        time.sleep(plan.pause_s)
        if len(struck) >= plan.faults:
            continue
        kind = random.choice(plan.kinds)
        before = store.table
        begun_s = _strike(kind, servers, random, lambda: _has_noticed(kind, before, store.table))  # noqa: B023
        _wait_until_over(kind, before, store)
        struck.append((begun_s, time.monotonic() - begun_s))
        tell(f"{len(struck)} of {plan.faults} faults, {crew.pushes()} pushes acknowledged")
    return struck


def _strike(kind: str, servers: LocalServers, random: Random, noticed: Callable[[], bool]) -> float:
    """Returns when it was done; the victim is there again when this returns."""
    role = "coordinator" if kind == "coordinator" else "server"
    victim = random.choice([process for process in servers.processes if process.role == role])
    begun_s = time.monotonic()
    os.kill(victim.pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
    if kind == "stop":
        try:
            _wait_until(noticed)  # a coordinator that has just come back itself gives everybody a lease first
        finally:
            os.kill(victim.pid, signal.SIGCONT)
    else:
        servers.wait_until_healed(victim.pid)
    return begun_s


def _wait_until_over(kind: str, before: Table, store: Store) -> None:
    _wait_until(lambda: _has_noticed(kind, before, store.table) and _is_whole(store.table))


def _has_noticed(kind: str, before: Table, now: Table) -> bool:
    """Does the table show that something has happened? Until then it only looks whole."""
    if kind == "kill":
        return before.servers != now.servers
    return now.term > before.term if kind == "coordinator" else now.epoch > before.epoch


def _is_whole(table: Table) -> bool:
    return all(len(backups) >= table.replicas for backups in table.backups)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _WHOLE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise PeerTimeout(f"the store was not whole again within {_WHOLE_S:g} s; see its servers' output")
        time.sleep(0.01)


def _count(
    store: Store, counts: Sequence[dict[str, int]], struck: list[tuple[float, float]], times: list[tuple[float, float]]
) -> Report:
    lost = doubled = 0
    for value in store.pull(list(KEYS)) if counts else ():
        for worker, count in enumerate(counts):
            missing = count["pushes"] - int(value[worker])
            lost, doubled = lost + max(0, missing), doubled + max(0, -missing)
    back = [min((end for begun, end in times if begun >= at), default=None) for at, _ in struck]
    back_s = tuple(end - at for end, (at, _) in zip(back, struck, strict=True) if end is not None)
    pushes, replicated = sum(c["pushes"] for c in counts), sum(c["replicated"] for c in counts)
    return Report(len(struck), pushes, replicated, lost, doubled, back_s, tuple(whole_s for _, whole_s in struck))
