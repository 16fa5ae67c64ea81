"""Lets faults happen in the simulator, and knows whether a store with so many replicas has to survive them.

A scenario within its budget leaves each shard a holder that is well: alive, not stopped, not cut off, and in the
journalled in-sync set. A fault that would take the last one is left out; a wild scenario leaves nothing out.
"""

from dataclasses import dataclass, field

import msgspec

from gradtide.store.membership import Record
from gradtide.store.messages import Table
from gradtide.testing.actors import World
from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.history import Violation
from gradtide.testing.processes import CoordinatorActor, HostActor

__all__ = ["Trouble"]

_WELL_FOR_S = 3.5  # whoever was unwell may be thought so for some time


@dataclass(slots=True)
class Trouble:
    """Of one run."""

    world: World
    replicas: int
    lease_s: float
    wild: bool
    unwell: dict[str, int] = field(default_factory=dict)  # server -> how many faults it has now
    well_since_s: dict[str, float] = field(default_factory=dict)
    ends_s: float = 0.0
    happened: list[Fault] = field(default_factory=list)
    goers: set[tuple[str, int]] = field(default_factory=set)  # servers that were asked to go, with their incarnation

    def plan(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            self.ends_s = max(self.ends_s, fault.at_s + fault.for_s)
            self.world.clock.after(fault.at_s, lambda f=fault: self._begin(f))  # type: ignore[misc]

    def _begin(self, fault: Fault) -> None:
        if fault.kind in ("join", "leave"):
            self._come_or_go(fault)
            return
        if fault.who != COORDINATOR and fault.who not in self.world.hosts:
            return
        if fault.who != COORDINATOR and not self.wild and not self._survivable(fault):
            return
        self.happened.append(fault)
        for server in self._touched(fault):
            self.unwell[server] = self.unwell.get(server, 0) + 1
        if fault.kind == "cut":
            self._cut(fault)
        elif fault.who == COORDINATOR:
            self._trouble_coordinator(fault)
        else:
            self._trouble_server(fault)

    def _come_or_go(self, fault: Fault) -> None:
        """A server comes if it is not there; it is asked to go if enough others stay."""
        hosts = self.world.hosts
        actor = hosts.get(fault.who)
        if fault.kind == "join" and (actor is None or (actor.host.dismissed and not actor.alive)):
            incarnation = actor.host.incarnation + 1 if actor is not None else 1
            HostActor(self.world, fault.who, 1, incarnation, self.replicas)
            self.happened.append(fault)
        table = self._table()
        listed = [hosts[server.name].host for server in table.servers] if table is not None else []
        staying = [h.name for h in listed if not h.dismissed and (h.name, h.incarnation) not in self.goers]
        if fault.kind == "leave" and fault.who in staying and len(staying) > self.replicas + 1:
            self.goers.add((fault.who, hosts[fault.who].host.incarnation))
            hosts[fault.who].deliver(hosts[fault.who].host.drain)
            self.happened.append(fault)

    def _table(self) -> Table | None:
        return msgspec.msgpack.decode(self.world.journal, type=Record).table if self.world.journal else None

    def _touched(self, fault: Fault) -> set[str]:
        return {name for name in (fault.who, fault.peer) if name in self.world.hosts}  # else it has not come yet

    def _survivable(self, fault: Fault) -> bool:
        """Would every shard still have a holder that is well?"""
        table = self._table()
        if table is None or any(self.world.hosts[name].host.dismissed for name in self._touched(fault)):
            return False
        if not table.replicas:
            return fault.kind != "kill"
        hit = self._touched(fault)
        rest = [(i, entry) for i, entry in enumerate(table.servers) if entry.name not in hit]
        well = {i for i, entry in rest if self._is_well(entry.name, entry.incarnation)}
        holders = set(zip(table.owners, table.backups, strict=True))
        return all(owner in well or not well.isdisjoint(backups) for owner, backups in holders)

    def _is_well(self, name: str, incarnation: int) -> bool:
        actor = self.world.hosts[name]
        long_enough = self.world.clock.now_s - self.well_since_s.get(name, -_WELL_FOR_S) >= _WELL_FOR_S
        return actor.alive and actor.host.incarnation == incarnation and not self.unwell.get(name) and long_enough

    def _end(self, fault: Fault) -> None:
        for server in self._touched(fault):
            self.unwell[server] -= 1
            self.well_since_s[server] = self.world.clock.now_s

    def _cut(self, fault: Fault) -> None:
        walls = [(fault.who, fault.peer)] if fault.way in ("both", "from") else []
        walls += [(fault.peer, fault.who)] if fault.way in ("both", "to") else []
        self.world.network.walls += walls

        def heal() -> None:
            for wall in walls:
                self.world.network.walls.remove(wall)
            self._end(fault)

        self.world.clock.after(fault.for_s, heal)

    def _trouble_server(self, fault: Fault) -> None:
        actor, clock = self.world.hosts[fault.who], self.world.clock
        if fault.kind == "stop":
            actor.stop()
            clock.after(fault.for_s, actor.go_on)
            clock.after(fault.for_s, lambda: self._end(fault))
            return
        actor.kill()
        host = actor.host
        if not fault.silent:
            self.world.close_sockets(host.name, host.incarnation)

        def start() -> None:
            if self.world.hosts[fault.who].host.incarnation == host.incarnation:
                HostActor(self.world, fault.who, host.expected, host.incarnation + 1, self.replicas)
            self._end(fault)

        clock.after(fault.for_s, start)

    def _trouble_coordinator(self, fault: Fault) -> None:
        actor, clock = self.world.coordinator, self.world.clock
        assert actor is not None
        if fault.kind == "stop":
            actor.stop()
            clock.after(fault.for_s, actor.go_on)
            return
        if fault.silent:
            actor.dies_after_writing = True
            clock.after(fault.for_s / 2, actor.kill)
        else:
            actor.kill()
        clock.after(fault.for_s, lambda: self._start_coordinator(fault.disk))

    def _start_coordinator(self, disk: bool) -> None:
        """Without its journal it must stop; somebody then finds the journal."""
        assert self.world.coordinator is not None
        if self.world.coordinator.alive:
            return
        journal = self.world.journal
        told = all(actor.host.table is not None for actor in self.world.hosts.values())
        if not disk and told:  # else it is the store's first coordinator, as far as anybody can know
            self.world.journal = b""
            without = CoordinatorActor(self.world, self.lease_s)
            self.world.clock.after(1.0, lambda: self._find_journal(without, journal))
            return
        CoordinatorActor(self.world, self.lease_s)

    def _find_journal(self, without: CoordinatorActor, journal: bytes) -> None:
        if self._table() is not None:
            self.world.history.broken.append(Violation("journal", "a coordinator without its journal made decisions"))
        without.kill()
        self.world.journal = journal
        CoordinatorActor(self.world, self.lease_s)
