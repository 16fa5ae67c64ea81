"""A store on four machines, struck while workers push exact integers: its servers, coordinators and members of etcd.

server        a server is killed, and started again
coordinator   the coordinator that leads is, while another stands by
etcd          a member of etcd is
link          the link between two of the machines is cut for a while
machine       a machine dies, cable first: with the leader, etcd's leader and a server
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random

from gradtide.chaos.drill import (
    Drill,
    DrillReport,
    DrillWorkers,
    StruckFault,
    count_pushes,
    draw_kinds,
    holders,
    is_whole,
    wait_until,
)
from gradtide.chaos.drill_worker import KEYS, no_pushes
from gradtide.chaos.machines import MACHINES, Machines
from gradtide.errors import ConfigError
from gradtide.store.client.store import Store, connect
from gradtide.store.rules.updates import update

__all__ = ["MACHINE_KINDS", "run_machine_chaos"]

MACHINE_KINDS = ("server", "coordinator", "etcd", "link", "machine")
_CUT_S = 4.0


def run_machine_chaos(plan: Drill, tell: Callable[[str], None] = lambda text: None) -> DrillReport:
    """Start, disturb, count; of the plan, servers, replicas, workers and the number of faults count."""
    unknown = set(plan.kinds) - set(MACHINE_KINDS)
    if unknown or not plan.kinds:
        raise ConfigError(f"unknown fault {', '.join(sorted(unknown))!r}; choose from {', '.join(MACHINE_KINDS)}")
    with ExitStack() as stack:
        machines = Machines(plan.servers, replicas=plan.replicas)
        stack.callback(machines.close)
        store = stack.enter_context(connect(machines.address, secret_file=machines.secret_file))
        store.init(dict.fromkeys(KEYS, no_pushes(plan.workers, compressed=False)), update=update("add"))
        with machines.at_the_workers():
            crew = stack.enter_context(DrillWorkers(plan, machines))
        crew.read_lines()
        struck = _disturb(plan, machines, store, crew, tell)
        counts = crew.stop()
        return count_pushes(store, counts, struck, crew.times())


def _disturb(
    plan: Drill, machines: Machines, store: Store, crew: DrillWorkers, tell: Callable[[str], None]
) -> list[StruckFault]:
    random, struck = Random(plan.seed), list[StruckFault]()
    kinds = draw_kinds(plan.kinds, random)
    for number in range(plan.faults):
        wait_until(lambda: is_whole(store.table), "before a fault")
        machines.etcd.wait_until_well()
        machines.leader()
        time.sleep(plan.pause_s)
        kind = next(kinds)
        fault = _Striking(machines, store, crew, random).strike(kind)
        struck.append(fault)
        tell(f"{number + 1} of {plan.faults} faults, {crew.pushes()} pushes acknowledged")
    return struck


class _Striking:
    """One fault."""

    def __init__(self, machines: Machines, store: Store, crew: DrillWorkers, random: Random) -> None:
        self._machines, self._store, self._crew, self._random = machines, store, crew, random

    def strike(self, kind: str) -> StruckFault:
        ways = {"server": self._server, "coordinator": self._coordinator, "etcd": self._etcd, "link": self._link}
        at_s, mend = ways.get(kind, self._machine)()
        wait_until(lambda: self._crew.all_pushed_since(at_s), f"{kind}: of a push begun since")
        over_s = time.monotonic()
        mend()
        wait_until(lambda: is_whole(self._store.table), f"after {kind}")
        return StruckFault(kind, at_s, time.monotonic() - at_s, over_s)

    def _server(self) -> "_Struck":
        names = sorted(name for name in holders(self._store.table) if name.startswith("server"))
        victim, before, at_s = self._random.choice(names), self._store.table.servers, time.monotonic()
        self._machines.kill(victim)
        return at_s, lambda: self._again([victim], lambda: self._store.table.servers != before)

    def _coordinator(self) -> "_Struck":
        victim, term, at_s = self._machines.leader(), self._store.table.term, time.monotonic()
        self._machines.kill(victim)
        wait_until(lambda: self._store.table.term > term, f"{victim} was killed; since then")
        return at_s, lambda: self._again([victim], lambda: True)

    def _etcd(self) -> "_Struck":
        victim, at_s = self._random.choice(MACHINES), time.monotonic()
        self._machines.etcd.kill(victim)
        time.sleep(_CUT_S)
        return at_s, lambda: self._machines.etcd.start(victim)

    def _link(self) -> "_Struck":
        one, other = self._random.sample(MACHINES, 2)
        at_s = time.monotonic()
        self._machines.part(one, other)
        time.sleep(_CUT_S)
        return at_s, lambda: self._machines.join(one, other)

    def _machine(self) -> "_Struck":
        machine = self._machines.machine_of(self._machines.leader())
        self._machines.etcd.lead_from(machine)
        before, at_s = self._store.table.servers, time.monotonic()
        names = self._machines.kill_machine(machine)

        def mend() -> None:
            self._machines.start_machine(machine, names)
            wait_until(lambda: self._store.table.servers != before, f"{machine} is there again; since then")

        return at_s, mend

    def _again(self, names: Sequence[str], back: Callable[[], bool]) -> None:
        for name in names:
            self._machines.start_again(name)
            self._machines.wait_until_it_listens(name)
        wait_until(back, f"{', '.join(names)} is there again; since then")


_Struck = tuple[float, Callable[[], None]]  # when, and how to mend it
