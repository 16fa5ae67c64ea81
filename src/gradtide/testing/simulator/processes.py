"""The shells of the simulator around servers and coordinator: processes that can be killed, stopped and started."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from gradtide.errors import OutputError, StoreError
from gradtide.store.coordinator.clerk import Clerk
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.shard.replication import ReplicationOptions
from gradtide.store.shard.shard_events import Answer
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.cutter import Cutter
from gradtide.store.wire.messages import (
    Beat,
    BeginCut,
    CollectCut,
    Join,
    Leave,
    Message,
    Question,
    Request,
    ServerMessage,
    Table,
    Welcome,
    encode,
)
from gradtide.testing.faults import COORDINATOR
from gradtide.testing.simulator.actors import World
from gradtide.testing.simulator.checkpoints import SimulatedWriting
from gradtide.testing.simulator.disk import Disk
from gradtide.testing.simulator.history import Violation
from gradtide.testing.simulator.process import Process
from gradtide.testing.simulator.wire import decode

__all__ = ["CoordinatorActor", "HostActor"]

_OPTIONS = ReplicationOptions(resend_s=0.2, snapshot_s=0.4, lagging_s=1.1)


class CoordinatorActor(Process):
    """Runs a Membership with its journal, and notes in the history what it decided."""

    def __init__(self, world: World, lease_s: float = 2.0, disk: Disk | None = None) -> None:
        super().__init__()
        self.world = world
        self.disk = disk or world.disk
        self.met: set[str] = set()  # whoever has not said anything has no connection to this one
        self.dies: Literal["", "writing", "after writing"] = ""
        self.complaint = ""  # why it stopped
        record, now_s = self.disk.record, world.now_s(COORDINATOR)
        self.began_with_a_journal = record is not None
        self.membership = Membership(lease_s) if record is None else Membership.restore(record, now_s, lease_s)
        self.membership.worker_lease_s = max(lease_s, world.worker_lease_s)
        self.clerk = Clerk(self.membership, self._write)
        world.coordinator = self
        world.every_tick(lambda: self.deliver(self._tick), lambda: self.alive, COORDINATOR)

    @property
    def has_its_own_journal(self) -> bool:
        """Or is it an old one, or none?"""
        return self.disk is self.world.disk

    def receive(self, source: str, message: Message) -> None:
        if isinstance(message, Join | Beat | Leave):
            self.met.add(source)
        try:
            self._tell(self.membership.hear(message, self.world.now_s(COORDINATOR)))
        except StoreError as error:
            self.complaint = str(error)
            self.kill()

    def lost(self, name: str, incarnation: int) -> None:
        """A peer's socket was closed."""
        self.deliver(lambda: self._tell(self.membership.lost(name, incarnation)))

    def _tick(self) -> None:
        if not self.stopped:
            self._tell(self.membership.tick(self.world.now_s(COORDINATOR)))

    def _tell(self, tells: list[Tell]) -> None:
        before = len(self.disk.entries)
        tells = self.clerk.tellable(tells, self.world.now_s(COORDINATOR))
        if self.disk.slow_s and len(self.disk.entries) > before:
            self.stop()  # until it is on disk
            self.world.clock.after(self.disk.slow_s, lambda: self._send(tells))
            self.world.clock.after(self.disk.slow_s, self.go_on)
        else:
            self._send(tells)

    def _write(self, record: Record) -> None:
        if self.dies == "writing":
            self.kill()
            raise OutputError("it died in the middle of it: the old one stays")
        self.disk.write(record)
        if self.has_its_own_journal:
            self.note(record)
        if self.dies:
            self.kill()

    def _send(self, tells: Iterable[Tell]) -> None:
        for tell in tells if self.alive else ():
            if tell.name not in self.met:
                continue
            self._check(tell)
            wire = encode(tell.message)
            peer = self.world.hosts.get(tell.name) or self.world.clients.get(tell.name)
            if peer is not None:
                hear = lambda p=peer, w=wire: p.deliver(lambda: p.hear(decode(w)))  # noqa: E731
                self.world.network.send(COORDINATOR, tell.name, hear)

    def _check(self, tell: Tell) -> None:
        """What is told is on disk; and who knows more than an old journal is told nothing by who has it."""
        broken, actor = self.world.history.broken, self.world.hosts.get(tell.name)
        if not self.disk.has(tell.message):
            broken.append(Violation("written first", f"{tell.name} was told {tell.message}, which is not on disk"))
        if self.has_its_own_journal or isinstance(tell.message, Welcome) or actor is None:
            return
        if actor.host.epoch > self.membership.epoch:
            broken.append(Violation("journal", f"{tell.name}, which knows more, was told {tell.message}"))

    def note(self, record: Record) -> None:
        history = self.world.history
        if record.table is not None:
            self._note_struck_off(history.tables.get(record.table.epoch - 1), record.table)
            history.note_table(record.table)
        members = {member.worker: member.from_round for member in record.decree.members} if record.decree else {}
        for member in record.decree.members if record.decree else ():
            if member.until:
                history.until.setdefault(member.worker, member.until)
        for worker, first in members.items():
            history.joined.setdefault(worker, first)
        for worker in history.joined:
            if worker not in members:
                history.left.setdefault(worker, self.world.clock.now_s)

    def _note_struck_off(self, old: Table | None, new: Table) -> None:
        """A network that loses every word of a server for a lease has cost a replica, as a fault does. If the primary
        has died by then, unnoticed, that may have been the last: nobody could have known."""
        lives = {s for s in (*(old or new).servers, *new.servers) if self.world.is_alive(s.name, s.incarnation)}
        if old is None or lives.issuperset(new.servers):
            return
        for shard, backups in enumerate(new.backups):
            owner = new.servers[new.owners[shard]]
            before = {old.servers[i] for i in (old.owners[shard], *old.backups[shard])}
            gone = before - {new.servers[i] for i in backups} - {owner}
            if owner not in lives and not lives.isdisjoint(gone):
                self.world.history.struck_off.add(shard)


class HostActor(Process):
    """Runs a Host."""

    def __init__(self, world: World, name: str, expected: int, incarnation: int = 1, replicas: int = 0) -> None:
        super().__init__()
        self.world = world
        self.host: ShardSet[Any] = ShardSet(
            name, incarnation, name, world.arithmetic, expected, replicas=replicas, options=_OPTIONS
        )
        self.cutter = Cutter(
            self.host,
            wake=lambda: self.deliver(self._poll_cutter),
            copy=self.host.arithmetic.copy,
            begin_writing=lambda folder, hear: SimulatedWriting(self, folder, hear),
        )
        world.hosts[name] = self
        world.every_tick(lambda: self.deliver(self._tick), lambda: self.alive, name)

    def _tick(self) -> None:
        self._tell(self.host.tick(self.world.now_s(self.host.name)))
        self._replicate()
        self._poll_cutter()
        self._go_if_dismissed()

    def _poll_cutter(self) -> None:
        if self.cutter.active:
            self._answer(self.cutter.poll(self.world.now_s(self.host.name)))

    def hear(self, message: Message) -> None:
        words, answers = self.host.hear(message, self.world.now_s(self.host.name))
        self._tell(words)
        self._answer(answers)
        self._poll_cutter()
        self._go_if_dismissed()

    def _go_if_dismissed(self) -> None:
        if self.host.dismissed and self.alive:
            self.kill()
            self.world.close_sockets(self.host.name, self.host.incarnation)

    def reconnect(self, peer: str) -> None:
        """There is a new connection to another server."""

        def up() -> None:
            self.host.peer_is_up(peer)
            self._replicate()

        self.deliver(up)

    def hear_server(self, message: ServerMessage, values: Sequence[Any]) -> None:
        self._answer(self.host.hear_server(message, values, self.world.now_s(self.host.name)))

    def receive(self, message: Request | Question, values: Sequence[Any]) -> None:
        if isinstance(message, BeginCut | CollectCut):
            self._answer(self.cutter.handle(message, self.world.now_s(self.host.name)))
        else:
            self._answer(self.host.handle(message, self.world.unpack(self.host, message, values)))
        self._poll_cutter()

    def _tell(self, words: Iterable[Message]) -> None:
        for word in words:
            self.world.tell_coordinator(self.host.name, word)

    def _answer(self, answers: Iterable[Answer[Any]]) -> None:
        for answer in answers:
            client, wire = self.world.clients[answer.client], encode(answer.message)
            values = self._copies(answer.values)
            self.world.network.send(
                self.host.name,
                answer.client,
                lambda c=client, w=wire, v=values: c.deliver(lambda: c.receive(self.host.name, decode(w), v)),  # type: ignore[misc]
            )
        self._replicate()

    def _replicate(self) -> None:
        for send in self.host.take_outbox():
            target, wire, values = self.world.hosts[send.name], encode(send.message), self._copies(send.values)
            self.world.network.send(
                self.host.name,
                send.name,
                lambda t=target, w=wire, v=values: t.deliver(lambda: t.hear_server(decode(w), v)),  # type: ignore[misc]
            )

    def _copies(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """As they are when they are sent."""
        return tuple(map(self.world.arithmetic.copy, values))
