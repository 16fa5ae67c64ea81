"""The shells around several coordinators, and which of them each peer talks to. It is checked that at no time two lead:
who led before answers no beat once a new leader may decide."""

from collections.abc import Iterable
from functools import partial

from gradtide.errors import StoreError
from gradtide.store.coordinator.election.office import Office
from gradtide.store.coordinator.election.register import Answer, Question
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import Beat, Elsewhere, Join, Leave, Message, Welcome, encode
from gradtide.testing.simulator.actors import ClientActor, World
from gradtide.testing.simulator.election.register import SimulatedRegister
from gradtide.testing.simulator.history import Violation
from gradtide.testing.simulator.process import Process
from gradtide.testing.simulator.processes import CoordinatorActor, HostActor
from gradtide.testing.simulator.wire import decode

__all__ = ["CoordinatorGroup", "ElectedActor"]


class ElectedActor(CoordinatorActor):
    """One of several: runs an Office."""

    def __init__(self, group: "CoordinatorGroup", name: str, start: int) -> None:
        Process.__init__(self)
        self.world, self.group, self.name = group.world, group, name
        self.disk = self.world.disk
        self.met: set[str] = set()
        self.reign = 0  # which leader it is, of all that there were
        self.office = Office(name, f"{name}.{start}", self._make)
        self.world.every_tick(lambda: self.deliver(self._tick), lambda: self.alive, name)

    @property
    def now_s(self) -> float:
        return self.world.now_s(self.name)

    def _make(self, record: Record | None, now_s: float) -> Membership:
        lease_s = self.group.lease_s
        membership = Membership(lease_s) if record is None else Membership.restore(record, now_s, lease_s)
        membership.worker_lease_s = max(lease_s, self.world.worker_lease_s)
        return membership

    def receive(self, source: str, message: Message) -> None:
        if not self.office.leads(self.now_s):
            self._send([Tell(source, self.office.elsewhere)])
            return
        if isinstance(message, Join | Beat | Leave):
            self.met.add(source)
        try:
            self._send(self.office.hear(message, self.now_s))
        except StoreError as error:
            self.world.history.broken.append(Violation("journal", str(error)))
            self.kill()

    def lost(self, name: str, incarnation: int) -> None:
        self.met.discard(name)
        self.deliver(lambda: self._send(self.office.lost(name, incarnation, self.now_s)))

    def _tick(self) -> None:
        led = self.office.membership is not None
        for question in self.office.questions(self.now_s):
            self.group.register.ask(self.name, question, partial(self._answered, question))
        self._send(self.office.tick(self.now_s))
        if led and self.office.membership is None:
            gone, self.met = self.met, set()
            self._send([Tell(name, self.office.elsewhere) for name in sorted(gone)])

    def _answered(self, question: Question, answer: Answer) -> None:
        self.deliver(lambda: self._hear_register(question, answer))

    def _hear_register(self, question: Question, answer: Answer) -> None:
        before = self.office.membership
        told = self.office.answered(question, answer, self.now_s)
        membership = self.office.membership
        if membership is not None and membership is not before:
            self.group.begin_reign(self, max(self.now_s, membership.inherited_until_s))
        self._send(told)

    def _send(self, tells: Iterable[Tell]) -> None:
        for tell in tells if self.alive else ():
            if isinstance(tell.message, Elsewhere):
                self.world.network.send(self.name, tell.name, partial(self.group.redirect, self, tell))
                continue
            if tell.name not in self.met:
                continue
            self._check(tell)
            self.group.check_reign(self, tell)
            peer = self.world.hosts.get(tell.name) or self.world.clients.get(tell.name)
            if peer is not None:
                self.world.network.send(
                    self.name, tell.name, partial(self._arrive, peer, tell.name, encode(tell.message))
                )

    def _arrive(self, peer: HostActor | ClientActor, name: str, wire: bytes) -> None:
        if self.group.at(name) is self:  # else it has closed that connection
            self.group.heard(name)
            peer.deliver(lambda: peer.hear(decode(wire)))


class CoordinatorGroup:
    """Takes the place of the one coordinator of a world. Peers go to the next when theirs is silent for a lease, or
    says that it does not lead."""

    has_its_own_journal = True

    def __init__(self, world: World, register: SimulatedRegister, count: int, lease_s: float) -> None:
        self.world, self.register, self.lease_s = world, register, lease_s
        self.names = [f"coordinator{i}" for i in range(count)]
        self.actors: dict[str, ElectedActor] = {}
        self.reigns: list[tuple[ElectedActor, float]] = []  # who led, and by his clock when he might decide
        self._starts = 0
        self._at: dict[str, str] = {}  # peer -> coordinator
        self._heard_s: dict[str, float] = {}
        world.coordinator = self  # type: ignore[assignment]
        world.to_coordinator = self.tell
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        """If it is not there."""
        if name in self.actors and self.actors[name].alive:
            return
        self._starts += 1
        self.actors[name] = ElectedActor(self, name, self._starts)

    # --- which coordinator leads ---

    @property
    def leader(self) -> ElectedActor | None:
        """Who can prove it now, the newest first."""
        found = [actor for actor, _ in reversed(self.reigns) if actor.alive and actor.office.leads(actor.now_s)]
        return found[0] if found else None

    def begin_reign(self, actor: ElectedActor, decides_from_s: float) -> None:
        self.reigns.append((actor, decides_from_s))
        actor.reign = len(self.reigns)

    def check_reign(self, actor: ElectedActor, tell: Tell) -> None:
        """Who answers a beat, and gives a lease with it, is the last who may."""
        if not (isinstance(tell.message, Welcome) and tell.message.accepted):
            return
        for other, decides_from_s in self.reigns[actor.reign :]:
            if self.world.now_s(other.name) >= decides_from_s:
                text = f"{actor.name} gave {tell.name} a lease when {other.name} led already"
                self.world.history.broken.append(Violation("one leader", text))

    def wrote(self, record: Record) -> None:
        """Something is in the journal: of the last term that there was, or of the next."""
        written = self.world.disk.record
        if written is not None and record.term < written.term:
            text = f"term {record.term} wrote the journal after term {written.term} had"
            self.world.history.broken.append(Violation("one leader", text))
        self.world.disk.write(record)
        self.actors[self.names[0]].note(record)

    # --- as the one coordinator of a world ---

    def tell(self, source: str, message: Message) -> None:
        now_s = self.world.clock.now_s
        if now_s - self._heard_s.setdefault(source, now_s) > self.lease_s:
            self._go(source, self._next(source))
        actor, wire = self.at(source), encode(message)
        arrive = lambda: actor.deliver(lambda: actor.receive(source, decode(wire)))  # noqa: E731
        self.world.network.send(source, actor.name, arrive)

    def lost(self, name: str, incarnation: int) -> None:
        """A peer has ended, or its connection: the coordinator that it talked to notices."""
        self.at(name).lost(name, incarnation)

    def at(self, peer: str) -> ElectedActor:
        """Whom a peer talks to."""
        if peer not in self._at:
            self._at[peer] = self.world.random.choice(self.names)
        return self.actors[self._at[peer]]

    def heard(self, peer: str) -> None:
        self._heard_s[peer] = self.world.clock.now_s

    def redirect(self, actor: ElectedActor, tell: Tell) -> None:
        """A peer hears that its coordinator does not lead."""
        if self.at(tell.name) is not actor or not isinstance(tell.message, Elsewhere):
            return
        leader = tell.message.leader
        self._go(tell.name, leader if leader in self.names and leader != actor.name else self._next(tell.name))

    def _next(self, peer: str) -> str:
        return self.names[(self.names.index(self.at(peer).name) + 1) % len(self.names)]

    def _go(self, peer: str, name: str) -> None:
        old, host = self.at(peer), self.world.hosts.get(peer)
        client = self.world.clients.get(peer)
        incarnation = host.host.incarnation if host is not None else client.session.incarnation if client else 0
        self._at[peer] = name
        self.heard(peer)
        if not any(peer in wall or "" in wall for wall in self.world.network.walls):
            self.world.clock.after(0.01, partial(old.lost, peer, incarnation))
