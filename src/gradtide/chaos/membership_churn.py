"""Real servers and workers on this machine that come and go while two workers train in rounds, with exact integers.

Every worker has a place of its own in every key and adds one there each round; in the end each place must hold exactly
as many as that worker had acknowledged. How long the longest step of those who stayed took says what it cost them.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median

import msgspec

from gradtide.chaos.crew import Crew
from gradtide.chaos.round_worker import KEYS, onehot
from gradtide.errors import ConfigError, GradtideError, PeerTimeout
from gradtide.store.client.store import Store, connect
from gradtide.store.coordinator.shard_moves import is_settled
from gradtide.store.local.servers import Forks, LocalServers, local_servers
from gradtide.timeouts import Timeouts

__all__ = ["ChurnReport", "Coming", "run_comings"]

_STAYING = 2
_SETTLED_S = 120.0
_PLACES = 64  # a comer takes the number of one that has left


@dataclass(frozen=True, slots=True)
class Coming:
    """How many come and go."""

    servers: int = 20  # comings and goings of servers
    workers: int = 100  # comings and goings of workers
    begin_with: int = 2  # servers
    at_most: int = 4
    replicas: int = 0
    elements: int = 2000  # of each key, for something to move
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ChurnReport:
    """What came of it."""

    servers: int
    workers: int
    steps: int  # of those who stayed
    lost: int
    doubled: int
    step_s: float  # the median
    longest_s: float
    settled_s: tuple[float, ...]  # for each coming or going of a server: until everything had moved


def run_comings(
    plan: Coming, tell: Callable[[str], None] = lambda text: None, forks: Forks | None = None
) -> ChurnReport:
    """Start, let them come and go, count."""
    if plan.begin_with <= plan.replicas or plan.at_most < plan.begin_with:
        raise ConfigError(f"{plan.begin_with} to {plan.at_most} servers can't keep {plan.replicas} replicas")
    with ExitStack() as stack:
        servers = stack.enter_context(local_servers(plan.begin_with, replicas=plan.replicas, forks=forks))
        stayers = stack.enter_context(_stayers(servers, plan))
        store = stack.enter_context(connect(servers.address))
        comers = _Comers(servers.address, plan)
        comers.thread.start()
        try:
            settled = _change_servers(plan, servers, store, comers, tell)
        finally:
            comers.finish()
        told = _finish(stayers)
        lost, doubled = _compare(store, [{i: t.pushes} for i, t in enumerate(told)] + [comers.pushed])
    steps_s = [seconds for t in told for seconds in t.steps_s]
    longest_s, pushes = max(steps_s), min(t.pushes for t in told)
    return ChurnReport(len(settled), comers.changes, pushes, lost, doubled, median(steps_s), longest_s, tuple(settled))


# --- those who stay ---


@contextmanager
def _stayers(servers: LocalServers, plan: Coming) -> Iterator[Crew]:
    program = [sys.executable, "-m", "gradtide.chaos.round_worker", servers.address]
    numbers = [[str(i), str(_STAYING), str(_PLACES), str(plan.elements)] for i in range(_STAYING)]
    with Crew([[*program, *some] for some in numbers]) as crew:
        if set(crew.read_lines()) != {"ready\n"}:
            raise GradtideError("a worker that should stay failed; see above")
        yield crew


class _Told(msgspec.Struct):
    pushes: int
    steps_s: list[float]


def _finish(crew: Crew) -> list[_Told]:
    lines = crew.finish()
    if not all(lines):
        raise GradtideError("a worker that should have stayed failed; see above")
    return [msgspec.json.decode(line, type=_Told) for line in lines]


# --- servers ---


def _change_servers(
    plan: Coming, servers: LocalServers, store: Store, comers: "_Comers", tell: Callable[[str], None]
) -> list[float]:
    random, settled = Random(plan.seed), list[float]()
    while len(settled) < plan.servers or comers.thread.is_alive():
        if comers.failure is not None:
            raise comers.failure
        if len(settled) >= plan.servers:
            comers.thread.join(0.1)
            continue
        count, begun_s = len(store.table.servers), time.monotonic()
        comes = count == plan.begin_with or (count < plan.at_most and random.random() < 0.5)
        if comes:
            servers.scale(count + 1)
        else:
            _let_go(servers, store, random)
        _wait_until_settled(store, count + 1 if comes else count - 1)
        settled.append(time.monotonic() - begun_s)
        tell(f"{len(settled)} of {plan.servers} changes of servers, {comers.changes} of {plan.workers} of workers")
    return settled


def _let_go(servers: LocalServers, store: Store, random: Random) -> None:
    """SIGTERM to one of the table: another may be on its way out already."""
    listed = {server.name for server in store.table.servers}
    victim = random.choice([process for process in servers.processes if process.name in listed])
    os.kill(victim.pid, signal.SIGTERM)


def _wait_until_settled(store: Store, count: int) -> None:
    deadline_s = time.monotonic() + _SETTLED_S
    while len(store.table.servers) != count or not is_settled(
        store.table, frozenset(s.name for s in store.table.servers)
    ):
        if time.monotonic() > deadline_s:
            raise PeerTimeout(f"the store has not become one of {count} servers within {_SETTLED_S:g} s")
        time.sleep(0.01)


# --- workers that come and go ---


class _Comers:
    """One after the other: joins the rounds, adds its ones for some of them, leaves."""

    def __init__(self, address: str, plan: Coming) -> None:
        self.changes, self.pushed = 0, dict[int, int]()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(address, plan), name="comers")
        self._ended = False

    def _run(self, address: str, plan: Coming) -> None:
        random = Random(plan.seed + 1)
        try:
            while self.changes < plan.workers and not self._ended:
                number = _STAYING + self.changes // 2 % (_PLACES - _STAYING)
                rounds = 1 + random.randrange(8)
                with connect(address, worker=number, consistency="bsp", timeouts=Timeouts(step_s=60.0)) as store:
                    self.changes += 1
                    value = onehot(number, _PLACES, plan.elements)
                    for _ in range(rounds):
                        store.pull(list(KEYS))
                        store.push(list(KEYS), [value] * len(KEYS)).wait()
                        self.pushed[number] = self.pushed.get(number, 0) + 1
                self.changes += 1
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        self._ended = True
        self.thread.join()


def _compare(store: Store, counted: list[dict[int, int]]) -> tuple[int, int]:
    lost = doubled = 0
    for value in store.pull(list(KEYS)):
        for number, pushes in (pair for counts in counted for pair in counts.items()):
            missing = pushes - int(value[number])
            lost, doubled = lost + max(0, missing), doubled + max(0, -missing)
    return lost, doubled
