"""Long runs on this machine: training under a kill every 20 s, and training while the machine has far too much to do.

What grows is found by looking, every few seconds, at what the processes that are never killed take; what is left over
by remembering every process that was ever there.
"""

import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median_low

from gradtide.chaos.crew import Crew
from gradtide.chaos.drill import is_whole
from gradtide.chaos.footprint import Footprint, Known, descendants, footprint, still_there
from gradtide.errors import ConfigError, GradtideError, PeerTimeout
from gradtide.store.client.store import Store, connect
from gradtide.store.local.servers import LocalServers, local_servers
from gradtide.store.local.status import ask_status

__all__ = ["Growth", "Overload", "Soak", "run_overload", "run_soak"]

Tell = Callable[[str], None]

_SPARED = "server-0"
_LOOK_S = 1.0
_WHOLE_S = 30.0
_GONE_S = 10.0
_MOST_GROWTH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Growth:
    """What one process took, from the first third of a run on."""

    name: str
    third_bytes: int
    end_bytes: int
    third_descriptors: int  # the median of the second third: who comes back has two connections for a moment
    end_descriptors: int  # the median of the last

    @property
    def grown_bytes(self) -> int:
        return self.end_bytes - self.third_bytes

    @property
    def is_steady(self) -> bool:
        return self.grown_bytes < _MOST_GROWTH_BYTES and self.end_descriptors <= self.third_descriptors


@dataclass(frozen=True, slots=True)
class Soak:
    """What a soak showed."""

    minutes: float
    kills: int
    steps: int
    growths: tuple[Growth, ...]
    orphans: int

    def complaints(self) -> list[str]:
        found = [f"{growth.name} grew" for growth in self.growths if not growth.is_steady]
        return [*found, f"{self.orphans} processes were left"] if self.orphans else found


@dataclass(frozen=True, slots=True)
class Overload:
    """What training on an overloaded machine showed."""

    minutes: float
    busy: int  # processes that only burnt time
    steps: int
    servers_evicted: int  # changes of the table that nobody asked for
    workers_evicted: int  # changes of who is in the rounds


def run_soak(minutes: float, workers: int = 2, every_s: float = 20.0, tell: Tell = lambda text: None) -> Soak:
    """Trains, and kills a server of three every so often, but never the first."""
    if minutes * 60 < 6 * every_s:
        raise ConfigError(
            f"{minutes:g} minutes hold too few kills to say what grows; soak for {every_s / 10:g} or more"
        )
    watch, kills, random = _Watch(), 0, Random(0)
    with _training(workers) as (servers, store, crew):
        begun_s = time.monotonic()
        while (now_s := time.monotonic() - begun_s) < minutes * 60:
            watch.look(now_s, {**_steady_processes(servers), **crew.pids})
            if now_s >= (kills + 1) * every_s:
                _kill_one(servers, store, random)
                kills += 1
            crew.check()
            tell(f"minute {now_s / 60:.1f} of {minutes:g}, {kills} kills")
            time.sleep(_LOOK_S)
        steps = crew.stop()
    return Soak(minutes, kills, steps, watch.growths(minutes * 60), len(watch.orphans()))


def run_overload(minutes: float, workers: int = 2, times: int = 3, tell: Tell = lambda text: None) -> Overload:
    """Trains beside so many processes a core that only burn time. Nobody dies, so nobody may be taken for dead."""
    if minutes <= 0 or times < 1:
        raise ConfigError("an overload needs some minutes, and at least one busy process a core")
    cores = len(os.sched_getaffinity(0))
    with _training(workers) as (servers, store, crew), _burning(times * cores):
        before = _decisions(servers)
        begun_s = time.monotonic()
        while (now_s := time.monotonic() - begun_s) < minutes * 60:
            crew.check()
            tell(f"minute {now_s / 60:.1f} of {minutes:g}, epoch {store.table.epoch}")
            time.sleep(_LOOK_S)
        after = _decisions(servers)
        steps = crew.stop()
    return Overload(minutes, times * cores, steps, after[0] - before[0], after[1] - before[1])


def _decisions(servers: LocalServers) -> tuple[int, int]:
    """How many tables and decrees there have been."""
    told = ask_status(servers.address, timeout_s=30.0).coordinator
    return told.table.epoch if told.table else 0, told.decree.number if told.decree else 0


class _Trainers(Crew):
    """Workers that train."""

    def __init__(self, address: str, workers: int) -> None:
        program = [sys.executable, "-m", "gradtide.chaos.trainer", address]
        super().__init__([[*program, str(i), str(workers)] for i in range(workers)])

    @property
    def pids(self) -> dict[str, int]:
        return {f"worker {i}": process.pid for i, process in enumerate(self.processes)}

    def check(self) -> None:
        for i, process in enumerate(self.processes):
            if process.poll() is not None:
                raise GradtideError(f"worker {i} ended with exit code {process.returncode}; its output says why")

    def stop(self) -> int:
        """Tells them to; the steps they made together."""
        steps = []
        for i, line in enumerate(self.finish()):
            if not line:
                code = self.processes[i].returncode
                raise GradtideError(f"worker {i} failed with exit code {code}; its output says why")
            steps.append(int(json.loads(line)["steps"]))
        return max(steps)


@contextmanager
def _training(workers: int) -> Iterator[tuple[LocalServers, Store, _Trainers]]:
    with ExitStack() as stack:
        servers = stack.enter_context(local_servers(3, replicas=1))
        store = stack.enter_context(connect(servers.address))
        crew = stack.enter_context(_Trainers(servers.address, workers))
        crew.read_lines()
        crew.check()
        yield servers, store, crew


@contextmanager
def _burning(count: int) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    burners = [spawn.Process(target=_burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    parent = os.getppid()
    for turn in itertools.count():
        if turn % 10_000 == 0 and os.getppid() != parent:
            return


def _steady_processes(servers: LocalServers) -> dict[str, int]:
    return {p.name: p.pid for p in servers.processes if p.role == "coordinator" or p.name == _SPARED}


def _kill_one(servers: LocalServers, store: Store, random: Random) -> None:
    _wait_until_whole(store)
    victim = random.choice([p for p in servers.processes if p.role == "server" and p.name != _SPARED])
    os.kill(victim.pid, signal.SIGKILL)
    servers.wait_until_healed(victim.pid)


def _wait_until_whole(store: Store) -> None:
    deadline_s = time.monotonic() + _WHOLE_S
    while not is_whole(store.table):
        if time.monotonic() > deadline_s:
            raise PeerTimeout(f"replicas were not in sync again within {_WHOLE_S:g} s; see the servers' output")
        time.sleep(0.01)


@dataclass(slots=True)
class _Watch:
    """What was seen, by the name of the process."""

    seen: dict[str, list[tuple[float, Footprint]]] = field(default_factory=dict)
    known: set[Known] = field(default_factory=set)
    strangers: set[Known] = field(default_factory=lambda: descendants(os.getpid()))  # who was there before

    def look(self, now_s: float, pids: dict[str, int]) -> None:
        for name, pid in pids.items():
            self.seen.setdefault(name, []).append((now_s, footprint(pid)))
        self.known |= descendants(os.getpid()) - self.strangers

    def growths(self, whole_s: float) -> tuple[Growth, ...]:
        found = []
        for name, seen in sorted(self.seen.items()):
            middle = [print_ for at_s, print_ in seen if whole_s / 3 <= at_s < whole_s * 2 / 3]
            last = [print_ for at_s, print_ in seen if at_s >= whole_s * 2 / 3]
            usual = [median_low(print_.descriptors for print_ in part) for part in (middle, last)]
            found.append(Growth(name, middle[0].memory_bytes, last[-1].memory_bytes, usual[0], usual[1]))
        return tuple(found)

    def orphans(self) -> set[Known]:
        """Who of all that were ever there is left, after some time to end."""
        deadline_s = time.monotonic() + _GONE_S
        while still_there(self.known) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return still_there(self.known)
