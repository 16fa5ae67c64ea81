"""Lets faults happen in the simulator, and knows whether a store with so many replicas has to survive them.

A scenario within its budget leaves each shard a holder that is well: alive, not stopped, not cut off, and in the
journalled in-sync set. A fault that would take the last one is left out; a wild scenario leaves nothing out.
"""

from dataclasses import dataclass, field

from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.simulator.actors import World
from gradtide.testing.simulator.disk import Disk
from gradtide.testing.simulator.history import Violation
from gradtide.testing.simulator.processes import CoordinatorActor, HostActor

__all__ = ["Trouble"]

SLOW_S = 0.3  # that a slow disk needs for a write
FOUND_S = 1.5  # until the right journal is found
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
        if fault.who in self.world.people:
            self._trouble_client(fault)
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
        elif fault.kind in ("reset", "stall"):
            self._break_link(fault)
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
        table = self.world.table
        listed = [hosts[server.name].host for server in table.servers] if table is not None else []
        staying = [h.name for h in listed if not h.dismissed and (h.name, h.incarnation) not in self.goers]
        if fault.kind == "leave" and fault.who in staying and len(staying) > self.replicas + 1:
            self.goers.add((fault.who, hosts[fault.who].host.incarnation))
            hosts[fault.who].deliver(hosts[fault.who].host.drain)
            self.happened.append(fault)

    def _touched(self, fault: Fault) -> set[str]:
        return {name for name in (fault.who, fault.peer) if name in self.world.hosts}  # else it has not come yet

    def _survivable(self, fault: Fault) -> bool:
        """Would every shard still have a holder that is well?"""
        table = self.world.table
        coordinator = self.world.coordinator
        if coordinator is not None and not coordinator.has_its_own_journal:
            return False
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

    def _break_link(self, fault: Fault) -> None:
        """Of two that live. What was on its way is lost; at once, or when the silence is noticed, there is another."""
        network, pair = self.world.network, (fault.who, fault.peer)
        walls = [pair, pair[::-1]] if fault.kind == "stall" else []
        network.walls += walls

        def connect_again() -> None:
            for wall in walls:
                network.walls.remove(wall)
            network.reset(*pair)
            self.world.notice_reset(*pair)
            self._end(fault)

        self.world.clock.after(fault.for_s if walls else 0.0, connect_again)

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

    def _trouble_client(self, fault: Fault) -> None:
        """It is killed and started again as another process, or hangs and goes on."""
        world, actor = self.world, self.world.people[fault.who]
        if not actor.alive or actor.finished or actor.stopped:
            return
        self.happened.append(fault)
        if fault.kind == "stop":
            actor.stop()
            world.clock.after(fault.for_s, actor.go_on)
            return
        actor.kill()
        if not fault.silent:
            world.hang_up(actor)
        world.start_again(fault.who, 1 + len(self.happened), fault.for_s)

    def _trouble_coordinator(self, fault: Fault) -> None:
        actor, clock = self.world.coordinator, self.world.clock
        assert actor is not None
        if fault.kind in ("full", "slow"):
            self._trouble_disk(fault)
            return
        if fault.kind == "stop":
            actor.stop()
            clock.after(fault.for_s, actor.go_on)
            return
        if fault.silent or fault.torn:
            actor.dies = "writing" if fault.torn else "after writing"
            clock.after(fault.for_s / 2, actor.kill)
        else:
            actor.kill()
        clock.after(fault.for_s, lambda: self._start_coordinator(fault))

    def _trouble_disk(self, fault: Fault) -> None:
        disk = self.world.disk
        if fault.kind == "full":
            disk.full += 1
        else:
            disk.slow_s = SLOW_S

        def mend() -> None:
            if fault.kind == "full":
                disk.full -= 1
            else:
                disk.slow_s = 0.0

        self.world.clock.after(fault.for_s, mend)

    def _start_coordinator(self, fault: Fault) -> None:
        """Without its journal, or with an old one, it must stop; somebody then finds the right one."""
        world = self.world
        assert world.coordinator is not None
        if world.coordinator.alive:
            return
        if world.disk.full:  # it can't even write down its new term
            world.clock.after(0.5, lambda: self._start_coordinator(fault))
            return
        told = all(actor.host.table is not None for actor in world.hosts.values())
        old = self._old_journal(fault.entries) if fault.entries else None
        if (not fault.disk and told) or old is not None:  # else it is the first, or last, as far as anybody can know
            wrong = CoordinatorActor(world, self.lease_s, old or Disk())
            world.clock.after(FOUND_S, lambda: self._find_journal(wrong))
            return
        CoordinatorActor(world, self.lease_s)

    def _old_journal(self, entries: int) -> Disk | None:
        """As it was some time ago, if all servers that live know more than it does."""
        disk = self.world.disk
        old = Disk(disk.entries[-1 - entries]) if len(disk.entries) > entries else None
        living = [actor.host for actor in self.world.hosts.values() if actor.alive]
        if old is None or old.record is None or old.table is None or not living:
            return None
        epoch = old.table.epoch
        return old if all(host.epoch > epoch for host in living) else None

    def _find_journal(self, wrong: CoordinatorActor) -> None:
        world = self.world
        well = any(self._is_well(name, actor.host.incarnation) for name, actor in world.hosts.items())
        if wrong.disk.table is not None and not wrong.complaint and (well or not wrong.began_with_a_journal):
            text = "a coordinator without its journal, or with an old one, went on"
            world.history.broken.append(Violation("journal", text))
        wrong.kill()
        CoordinatorActor(world, self.lease_s)
