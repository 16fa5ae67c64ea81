"""Real servers and workers on this machine, killed, cut off and more while every worker pushes exact integers.

At the end every sum must be exact: a push that was acknowledged and is missing was lost, one that is in twice was
doubled. Between two faults the store is given time to make its replicas whole again.

    kill          a server dies, and is started again
    stop          it is given no time, but lives
    coordinator   the coordinator dies, and is started again
    cut           a server's cable is pulled, and plugged in again when it is replaced
    stall         connections of a server lose what one of their ends says, for good; new ones pass
    disk          the coordinator's is full while a server dies
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import quantiles

from gradtide.chaos.crew import Crew
from gradtide.chaos.drill_worker import KEYS, TIMES, no_pushes
from gradtide.chaos.islands import Islands
from gradtide.compress import AUTO, as_compress
from gradtide.errors import ConfigError, GradtideError, PeerTimeout
from gradtide.store.client.store import Store, connect
from gradtide.store.local.forkserver import Alive
from gradtide.store.local.servers import Forks, LocalServers, local_servers
from gradtide.store.rules.updates import update
from gradtide.store.wire.messages import Table

__all__ = [
    "KINDS",
    "Drill",
    "DrillReport",
    "DrillWorkers",
    "StruckFault",
    "count_pushes",
    "draw_kinds",
    "holders",
    "is_whole",
    "run_chaos",
    "victims",
    "wait_until",
]

KINDS = ("kill", "stop", "coordinator", "cut", "stall", "disk")
_OF_ISLANDS = frozenset(("cut", "stall", "disk"))  # need networks, or disks, of their own

_WHOLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Drill:
    """What to do to whom."""

    faults: int = 20
    kinds: tuple[str, ...] = ("kill",)  # of KINDS
    servers: int = 3
    replicas: int = 1
    workers: int = 4
    pause_s: float = 0.3  # between the store being whole and the next fault
    pushes: int = 0  # go on until there were at least so many
    seed: int = 0
    compress: str = ""  # how pushes are: by a codec that sends later what it leaves out
    script: tuple[str, ...] = ()  # a user's command instead of workers; {address} and {secret} are the store's


@dataclass(frozen=True, slots=True)
class DrillReport:
    """What came of it."""

    faults: int
    pushes: int
    replicated: int
    lost: int
    doubled: int
    back_s: tuple[float, ...]  # from each fault to the next push, begun after it, that was acknowledged
    whole_s: tuple[float, ...]  # from each fault until every replica was in sync again
    longest_s: dict[str, float]  # by the kind of fault: the longest that a push had to wait because of it

    def quantile(self, share: float) -> float:
        times = sorted(self.back_s)
        return quantiles(times, n=100, method="inclusive")[round(share * 100) - 1] if len(times) > 1 else times[0]


def run_chaos(plan: Drill, tell: Callable[[str], None] = lambda text: None, forks: Forks | None = None) -> DrillReport:
    """Start, disturb, count."""
    _check(plan.kinds)
    _check_codec(plan)
    with ExitStack() as stack:
        servers = _servers(plan, forks)
        stack.callback(servers.close)
        store = stack.enter_context(connect(servers.address, secret_file=_secret_file(servers)))
        zeros = no_pushes(max(1, plan.workers), compressed=bool(plan.compress))
        store.init(dict.fromkeys(KEYS, zeros), update=update("add"), compress=plan.compress)
        crew = stack.enter_context(DrillWorkers(plan, servers))
        crew.read_lines()
        struck = _disturb(plan, servers, store, crew, tell)
        counts = crew.stop()
        return count_pushes(store, counts, struck, crew.times())


def _check(kinds: tuple[str, ...]) -> None:
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise ConfigError(f"unknown fault {', '.join(sorted(unknown))!r}; choose from {', '.join(KINDS)}")
    if "coordinator" in kinds and _OF_ISLANDS & set(kinds):
        raise ConfigError("a coordinator in a network of its own is not started again; give kill or stop beside cut")


def _check_codec(plan: Drill) -> None:
    settings = as_compress(plan.compress) if plan.compress else None
    if settings is not None and (settings.codec == AUTO or not settings.make().feedback or plan.script):
        raise ConfigError(
            f"compress={plan.compress!r} can't be counted; give a codec that loses nothing, onebit or topk, and "
            "no script"
        )


def _servers(plan: Drill, forks: Forks | None) -> LocalServers | Islands:
    if _OF_ISLANDS & set(plan.kinds):
        return Islands(plan.servers, replicas=plan.replicas, small_disk="disk" in plan.kinds)
    return local_servers(plan.servers, replicas=plan.replicas, forks=forks)


def _secret_file(servers: LocalServers | Islands) -> str | None:
    return servers.secret_file if isinstance(servers, Islands) else None


class DrillWorkers(Crew):
    """The workers, or the user's script."""

    def __init__(self, plan: Drill, servers: LocalServers | Islands) -> None:
        self.script = bool(plan.script)
        self._files = [Path(servers.folder) / f"times-{i}" for i in range(plan.workers)]
        secret = _secret_file(servers) or ""
        if plan.script:
            filled = [part.replace("{address}", servers.address) for part in plan.script]
            commands = [[part.replace("{secret}", secret) for part in filled]]
        else:
            program = [sys.executable, "-m", "gradtide.chaos.drill_worker", servers.address, secret]
            how = ["compressed"] if plan.compress else []
            commands = [[*program, str(i), str(plan.workers), str(f), *how] for i, f in enumerate(self._files)]
        super().__init__(commands, speaks=not plan.script)

    @property
    def working(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def pushes(self) -> int:
        return sum(f.stat().st_size // TIMES.size for f in self._files if f.exists())

    def stop(self) -> list[dict[str, int]]:
        """Tell them to; what each has had acknowledged."""
        if self.script:
            if self.processes[0].wait():
                raise GradtideError(f"the script ended with exit code {self.processes[0].returncode}")
            return []
        counts = []
        for i, line in enumerate(self.finish()):
            if not line:
                code = self.processes[i].returncode
                raise GradtideError(f"worker {i} of the chaos failed with exit code {code}; see above")
            counts.append(json.loads(line))
        return counts

    def times(self) -> list[list[tuple[float, float]]]:
        """When each worker's pushes were begun and acknowledged."""
        return [list(TIMES.iter_unpack(f.read_bytes())) for f in self._files if f.exists()]

    def all_pushed_since(self, at_s: float) -> bool:
        """Has every worker had a push acknowledged that it began after this?"""
        return all(self._last_begun(f) >= at_s for f in self._files if f.exists())

    def _last_begun(self, file: Path) -> float:
        with file.open("rb") as times:
            whole = file.stat().st_size // TIMES.size * TIMES.size
            times.seek(max(0, whole - TIMES.size))
            last = times.read(TIMES.size)
        return float(TIMES.unpack(last)[0]) if len(last) == TIMES.size else 0.0


@dataclass(frozen=True, slots=True)
class StruckFault:
    kind: str
    at_s: float
    whole_s: float  # from then on, until the store was whole again
    over_s: float  # when every worker had pushed since


def _disturb(
    plan: Drill, servers: LocalServers | Islands, store: Store, crew: DrillWorkers, tell: Callable[[str], None]
) -> list[StruckFault]:
    """One fault after the other."""
    random, struck = Random(plan.seed), list[StruckFault]()
    kinds = draw_kinds(plan.kinds, random)
    while crew.working and (len(struck) < plan.faults or (not crew.script and crew.pushes() < plan.pushes)):
        wait_until(lambda: is_whole(store.table), "before a fault")
        time.sleep(plan.pause_s)
        if len(struck) >= plan.faults:
            continue
        kind, before = next(kinds), store.table
        at_s = _strike(kind, servers, store, crew, random)
        wait_until(lambda: _is_over(kind, before, store.table), f"after {kind}")  # noqa: B023
        whole_s = time.monotonic() - at_s
        wait_until(lambda: crew.all_pushed_since(at_s) or not crew.working, f"{kind}: of a push begun since")  # noqa: B023
        struck.append(StruckFault(kind, at_s, whole_s, time.monotonic()))
        tell(f"{len(struck)} of {plan.faults} faults, {crew.pushes()} pushes acknowledged")
    return struck


def draw_kinds(kinds: tuple[str, ...], random: Random) -> Iterator[str]:
    """In any order, but no kind twice before each was there."""
    while True:
        yield from random.sample(kinds, len(kinds))


def _strike(kind: str, servers: LocalServers | Islands, store: Store, crew: DrillWorkers, random: Random) -> float:
    """Returns when it was done; the victim is there again when this returns."""
    victim = random.choice(victims(kind, servers.processes, store.table))
    at_s = time.monotonic()
    if kind in ("cut", "stop"):
        with _away(kind, servers, victim):
            wait_until(lambda: victim.name not in holders(store.table), f"{victim.name}: {kind}; since then")
    elif not isinstance(servers, Islands):
        os.kill(victim.pid, signal.SIGKILL)
        servers.wait_until_healed(victim.pid)
    elif kind == "stall":
        servers.stall(victim.name, random)
        wait_until(lambda: not servers.believes_in_what_is_stalled(), f"{victim.name}: {kind}; since then")
    elif kind == "kill":
        servers.kill(victim.name)
        servers.start_again(victim.name)
        servers.wait_until_it_listens(victim.name)
    else:
        at_s = _fill(servers, victim.name, crew)
    return at_s


def _fill(servers: Islands, victim: str, crew: DrillWorkers) -> float:
    """Returns when there was room again: until then nobody may be replaced."""
    servers.fill_disk()
    filled_s = time.monotonic()
    wait_until(lambda: crew.all_pushed_since(filled_s) or not crew.working, "with a full disk, but without need of it,")
    servers.kill(victim)
    servers.start_again(victim)
    wait_until(servers.misses_its_disk, f"the disk was full when {victim} died; since then")
    servers.wait_until_it_listens(victim)
    servers.free_disk()
    return time.monotonic()


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
    if kind in ("kill", "disk") and before.servers == now.servers:
        return False
    return is_whole(now) and (now.term > before.term or kind != "coordinator")


def is_whole(table: Table) -> bool:
    """Is every replica in sync?"""
    return all(len(backups) >= table.replicas for backups in table.backups)


def wait_until(condition: Callable[[], bool], when: str) -> None:
    deadline_s = time.monotonic() + _WHOLE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise PeerTimeout(f"{when} the store was not whole again within {_WHOLE_S:g} s; see its servers' output")
        time.sleep(0.01)


def _longest_wait(fault: StruckFault, times: list[list[tuple[float, float]]]) -> float:
    """Of the pushes that were under way at some time between the fault and its end: from it, or from their begin."""
    felt = (
        end - max(begun, fault.at_s)
        for mine in times
        for begun, end in mine
        if begun < fault.over_s and end > fault.at_s
    )
    return max(felt, default=0.0)


def count_pushes(
    store: Store, counts: Sequence[dict[str, int]], struck: list[StruckFault], times: list[list[tuple[float, float]]]
) -> DrillReport:
    lost = doubled = 0
    for value in store.pull(list(KEYS)) if counts else ():
        for worker, count in enumerate(counts):
            missing = count["pushes"] - value[worker]
            lost, doubled = lost + max(0, int(missing.max())), doubled + max(0, -int(missing.min()))
    back_s, longest_s = [], dict[str, float]()
    for fault in struck:
        nexts = [min((end for begun, end in mine if begun >= fault.at_s), default=None) for mine in times]
        if any(nexts):
            back_s.append(min(end for end in nexts if end is not None) - fault.at_s)
            longest_s[fault.kind] = max(longest_s.get(fault.kind, 0.0), _longest_wait(fault, times))
    pushes, replicated = sum(c["pushes"] for c in counts), sum(c["replicated"] for c in counts)
    whole_s = tuple(fault.whole_s for fault in struck)
    return DrillReport(len(struck), pushes, replicated, lost, doubled, tuple(back_s), whole_s, longest_s)
