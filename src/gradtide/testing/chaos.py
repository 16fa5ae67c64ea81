"""Real servers and workers on this machine, killed, stopped and cut off while every worker pushes exact integers.

At the end every sum must be exact: a push that was acknowledged and is missing was lost, one that is in twice was
doubled. Between two faults the store is given time to make its replicas whole again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import quantiles

import torch

from gradtide.errors import ConfigError, GradtideError, PeerTimeout
from gradtide.store.client import Store, connect
from gradtide.store.forkserver import Alive
from gradtide.store.local import Forks, LocalServers, local_servers
from gradtide.store.messages import Table
from gradtide.store.updates import update
from gradtide.testing.chaos_worker import KEYS, TIMES
from gradtide.testing.islands import Islands

__all__ = ["KINDS", "Plan", "Report", "holders", "run_chaos", "victims"]

KINDS = ("kill", "stop", "coordinator", "cut")

_WHOLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do to whom."""

    faults: int = 20
    kinds: tuple[str, ...] = ("kill",)  # of KINDS
    servers: int = 3
    replicas: int = 1
    workers: int = 4
    pause_s: float = 0.3  # between the store being whole and the next fault
    pushes: int = 0  # go on until there were at least so many
    seed: int = 0
    script: tuple[str, ...] = ()  # a user's command instead of workers; {address} and {secret} are the store's


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
    _check(plan.kinds)
    with ExitStack() as stack:
        servers = _servers(plan, forks)
        stack.callback(servers.close)
        store = stack.enter_context(connect(servers.address, secret_file=_secret_file(servers)))
        zeros = torch.zeros(max(1, plan.workers), dtype=torch.int64)
        store.init(dict.fromkeys(KEYS, zeros), update=update("add"))
        crew = stack.enter_context(_Crew(plan, servers))
        struck = _disturb(plan, servers, store, crew, tell)
        counts = crew.finish()
        return _count(store, counts, struck, crew.times())


def _check(kinds: tuple[str, ...]) -> None:
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise ConfigError(f"unknown fault {', '.join(sorted(unknown))!r}; choose from {', '.join(KINDS)}")
    if "cut" in kinds and not {"cut", "stop"} >= set(kinds):
        raise ConfigError("servers that are cut off are not started again: of the others only stop goes with cut")


def _servers(plan: Plan, forks: Forks | None) -> LocalServers | Islands:
    if "cut" in plan.kinds:
        return Islands(plan.servers, replicas=plan.replicas)
    return local_servers(plan.servers, replicas=plan.replicas, forks=forks)


def _secret_file(servers: LocalServers | Islands) -> str | None:
    return servers.secret_file if isinstance(servers, Islands) else None


class _Crew:
    """The workers, or the user's script."""

    def __init__(self, plan: Plan, servers: LocalServers | Islands) -> None:
        self.script = bool(plan.script)
        self._files = [Path(servers.folder) / f"times-{i}" for i in range(plan.workers)]
        secret = _secret_file(servers) or ""
        if plan.script:
            filled = [part.replace("{address}", servers.address) for part in plan.script]
            commands = [[part.replace("{secret}", secret) for part in filled]]
        else:
            program = [sys.executable, "-m", "gradtide.testing.chaos_worker", servers.address, secret]
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
    plan: Plan, servers: LocalServers | Islands, store: Store, crew: _Crew, tell: Callable[[str], None]
) -> list[tuple[float, float]]:
    """One fault after the other; when each was, and how long until the store was whole again."""
    random, struck = Random(plan.seed), list[tuple[float, float]]()
    while crew.working and (len(struck) < plan.faults or (not crew.script and crew.pushes() < plan.pushes)):
        _wait_until(lambda: _is_whole(store.table), "before a fault")
        time.sleep(plan.pause_s)
        if len(struck) >= plan.faults:
            continue
        kind, before = random.choice(plan.kinds), store.table
        begun_s = _strike(kind, servers, store, random)
        _wait_until(lambda: _is_over(kind, before, store.table), f"after {kind}")  # noqa: B023
        struck.append((begun_s, time.monotonic() - begun_s))
        tell(f"{len(struck)} of {plan.faults} faults, {crew.pushes()} pushes acknowledged")
    return struck


def _strike(kind: str, servers: LocalServers | Islands, store: Store, random: Random) -> float:
    """Returns when it was done; the victim is there again when this returns."""
    victim = random.choice(victims(kind, servers.processes, store.table))
    begun_s = time.monotonic()
    if isinstance(servers, Islands) or kind == "stop":
        with _away(kind, servers, victim):
            _wait_until(lambda: victim.name not in holders(store.table), f"{victim.name}: {kind}; since then")
    else:
        os.kill(victim.pid, signal.SIGKILL)
        servers.wait_until_healed(victim.pid)
    return begun_s


@contextmanager
def _away(kind: str, servers: LocalServers | Islands, victim: Alive) -> Iterator[None]:
    """A server that lives, and that nobody hears of."""
    if isinstance(servers, Islands) and kind == "cut":
        servers.unplug(victim.name)
    else:
        os.kill(victim.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if isinstance(servers, Islands) and kind == "cut":
            servers.plug(victim.name)
        else:
            os.kill(victim.pid, signal.SIGCONT)


def victims(kind: str, processes: Sequence[Alive], table: Table) -> list[Alive]:
    """Of the servers only those that hold something: of one that came back empty nobody would miss anything, and the
    table would not change when it is gone."""
    if kind == "coordinator":
        return [process for process in processes if process.role == "coordinator"]
    names = holders(table)
    return [process for process in processes if process.name in names]


def holders(table: Table) -> set[str]:
    """The servers that hold something, as primary or in sync."""
    held = {*table.owners, *(i for backups in table.backups for i in backups)}
    return {table.servers[i].name for i in held}


def _is_over(kind: str, before: Table, now: Table) -> bool:
    """Does the table show that something has happened, and that it is over? Until then it only looks whole."""
    if kind == "kill" and before.servers == now.servers:
        return False
    return _is_whole(now) and (now.term > before.term or kind != "coordinator")


def _is_whole(table: Table) -> bool:
    return all(len(backups) >= table.replicas for backups in table.backups)


def _wait_until(condition: Callable[[], bool], when: str) -> None:
    deadline_s = time.monotonic() + _WHOLE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise PeerTimeout(f"{when} the store was not whole again within {_WHOLE_S:g} s; see its servers' output")
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
