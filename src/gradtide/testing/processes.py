"""The shells of the simulator around servers and coordinator: processes that can be killed, stopped and started."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gradtide.errors import StoreError
from gradtide.store.host import Host
from gradtide.store.membership import Membership, Record, Tell
from gradtide.store.messages import Message, Request, ServerMessage, Table, encode
from gradtide.store.parts import Answer
from gradtide.store.replication import ReplicationOptions
from gradtide.testing.actors import World
from gradtide.testing.faults import COORDINATOR
from gradtide.testing.numbers import ExactArithmetic, Number
from gradtide.testing.wire import decode

__all__ = ["CoordinatorActor", "HostActor", "Process"]

_OPTIONS = ReplicationOptions(resend_s=0.2, snapshot_s=0.4, lagging_s=1.1)


class Process:
    """Something that lives until it is killed; while it is stopped, what comes for it waits."""

    def __init__(self) -> None:
        self.alive = True
        self.stopped = False
        self._waiting: list[Callable[[], None]] = []

    def deliver(self, action: Callable[[], None]) -> None:
        if self.stopped:
            self._waiting.append(action)
        elif self.alive:
            action()

    def kill(self) -> None:
        self.alive = False

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.deliver(action)


class CoordinatorActor(Process):
    """Runs a Membership with its journal, and notes in the history what it decided."""

    def __init__(self, world: World, lease_s: float = 2.0) -> None:
        super().__init__()
        self.world = world
        self.dies_after_writing = False
        self.complaint = ""  # why it stopped
        now_s = world.clock.now_s
        if world.journal:
            record = msgspec.msgpack.decode(world.journal, type=Record)
            self.membership = Membership.restore(record, now_s, lease_s)
        else:
            self.membership = Membership(lease_s)
        world.coordinator = self
        world.every_tick(lambda: self.deliver(self._tick), lambda: self.alive)

    def receive(self, message: Message) -> None:
        try:
            self._tell(self.membership.hear(message, self.world.clock.now_s))
        except StoreError as error:
            self.complaint = str(error)
            self.kill()

    def lost(self, name: str, incarnation: int) -> None:
        """A server's socket was closed."""
        self.deliver(lambda: self._tell(self.membership.lost(name, incarnation)))

    def _tick(self) -> None:
        if not self.stopped:
            self._tell(self.membership.tick(self.world.clock.now_s))

    def _tell(self, tells: Iterable[Tell]) -> None:
        record = self.membership.take_unwritten()
        if record is not None:
            self.world.journal = msgspec.msgpack.encode(record)
            self._note(record)
            if self.dies_after_writing:
                self.kill()
        if not self.alive:
            return
        for tell in tells:
            wire = encode(tell.message)
            host, client = self.world.hosts.get(tell.name), self.world.clients.get(tell.name)
            if host is not None:
                self.world.network.send(
                    COORDINATOR,
                    tell.name,
                    lambda h=host, w=wire: h.deliver(lambda: h.hear(decode(w))),  # type: ignore[misc]
                )
            elif client is not None:
                self.world.network.send(COORDINATOR, tell.name, lambda c=client, w=wire: c.hear(decode(w)))  # type: ignore[misc]

    def _note(self, record: Record) -> None:
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
        self.host: Host[Number] = Host(
            name, incarnation, name, ExactArithmetic(), expected, replicas=replicas, options=_OPTIONS
        )
        world.hosts[name] = self
        world.every_tick(lambda: self.deliver(self._tick), lambda: self.alive)

    def _tick(self) -> None:
        self._tell(self.host.tick(self.world.clock.now_s))
        self._replicate()
        self._go_if_dismissed()

    def hear(self, message: Message) -> None:
        words, answers = self.host.hear(message, self.world.clock.now_s)
        self._tell(words)
        self._answer(answers)
        self._go_if_dismissed()

    def _go_if_dismissed(self) -> None:
        if self.host.dismissed and self.alive:
            self.kill()
            self.world.close_sockets(self.host.name, self.host.incarnation)

    def hear_server(self, message: ServerMessage, values: Sequence[Number]) -> None:
        self._answer(self.host.hear_server(message, values, self.world.clock.now_s))

    def receive(self, message: Request, values: Sequence[Number]) -> None:
        self._answer(self.host.handle(message, values))

    def _tell(self, words: Iterable[Message]) -> None:
        for word in words:
            self.world.tell_coordinator(self.host.name, word)

    def _answer(self, answers: Iterable[Answer[Number]]) -> None:
        for answer in answers:
            client, wire, values = self.world.clients[answer.client], encode(answer.message), answer.values
            self.world.network.send(
                self.host.name,
                answer.client,
                lambda c=client, w=wire, v=values: c.receive(self.host.name, decode(w), v),  # type: ignore[misc]
            )
        self._replicate()

    def _replicate(self) -> None:
        for send in self.host.take_outbox():
            target, wire, values = self.world.hosts[send.name], encode(send.message), send.values
            self.world.network.send(
                self.host.name,
                send.name,
                lambda t=target, w=wire, v=values: t.deliver(lambda: t.hear_server(decode(w), v)),  # type: ignore[misc]
            )
