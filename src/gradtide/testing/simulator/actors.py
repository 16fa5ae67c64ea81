"""The shell of the simulator around clients: it moves messages and time, as sockets and clocks would."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from gradtide.store.client.operations import Done, Send, SessionInstruction, TellCoordinator
from gradtide.store.client.session import Session
from gradtide.store.rules.arithmetic import Arithmetic
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.layouts import BlockLayout
from gradtide.store.wire.messages import KeySpec, Message, Pushed, Question, Reply, Request, Table, encode
from gradtide.testing.faults import COORDINATOR
from gradtide.testing.simulator.checkpoints import CheckpointDisk
from gradtide.testing.simulator.clock import VirtualClock
from gradtide.testing.simulator.disk import Disk
from gradtide.testing.simulator.history import Operated, Place, SimulationHistory
from gradtide.testing.simulator.network import Network
from gradtide.testing.simulator.numbers import DIGIT_BITS, ExactArithmetic, Number
from gradtide.testing.simulator.process import Process
from gradtide.testing.simulator.wire import decode

if TYPE_CHECKING:
    from gradtide.testing.simulator.processes import CoordinatorActor, HostActor

__all__ = ["ClientActor", "Script", "World"]

TICK_S = 0.2

Unpack = Callable[[ShardSet[Any], Request, Sequence[Any]], Sequence[Any]]

# A client's program: yields seconds to sleep, or the sequences of operations to wait for.
Script = Callable[["ClientActor"], Generator[float | set[int], None, None]]
StartClient = Callable[["World", Session[Any], Script], "ClientActor"]


@dataclass(slots=True)
class World:
    """What all actors share."""

    clock: VirtualClock
    network: Network
    random: Random
    history: SimulationHistory = field(default_factory=SimulationHistory)
    hosts: dict[str, "HostActor"] = field(default_factory=dict)
    clients: dict[str, "ClientActor"] = field(default_factory=dict)
    coordinator: "CoordinatorActor | None" = None
    disk: Disk = field(default_factory=Disk)  # the coordinator's
    checkpoint_disk: CheckpointDisk = field(default_factory=CheckpointDisk)
    next_digit: int = 0
    worker_lease_s: float = 0.0  # how long a client may hang while its connection stands; at least a lease
    people: dict[str, "ClientActor"] = field(default_factory=dict)  # who it is now that was first started by this name
    programs: dict[str, Callable[[int], "ClientActor"]] = field(default_factory=dict)  # starts it for the nth time
    starts: dict[str, int] = field(default_factory=dict)  # the number of its last start
    rates: dict[str, float] = field(default_factory=dict)  # how fast a machine's clock runs
    coming: int = 0  # clients that are about to be started again
    arithmetic: Arithmetic[Any] = field(default_factory=ExactArithmetic)  # of the servers
    start_client: "StartClient" = lambda world, session, script: ClientActor(world, session, script)
    to_coordinator: "Callable[[str, Message], None] | None" = None  # where there are several
    unpack: Unpack = lambda shard_set, message, values: values  # from what arrives at a server to values

    @property
    def table(self) -> Table | None:
        """The last that was journalled."""
        return self.disk.table

    def tell_coordinator(self, source: str, message: Message) -> None:
        if self.to_coordinator is not None:
            self.to_coordinator(source, message)
            return
        wire = encode(message)
        coordinator = self.coordinator
        assert coordinator is not None
        self.network.send(
            source, COORDINATOR, lambda: coordinator.deliver(lambda: coordinator.receive(source, decode(wire)))
        )

    def is_alive(self, name: str, incarnation: int) -> bool:
        actor = self.hosts.get(name)
        return actor is not None and actor.alive and actor.host.incarnation == incarnation

    def close_sockets(self, name: str, incarnation: int) -> None:
        """A server has ended, and its peers notice: the coordinator and the clients."""
        assert self.coordinator is not None
        self.clock.after(0.01, partial(self.coordinator.lost, name, incarnation))
        for client in list(self.clients.values()):
            self.clock.after(0.01, partial(client.lost, name))

    def hang_up(self, client: "ClientActor") -> None:
        """A client has ended, and the coordinator notices."""
        assert self.coordinator is not None
        name, incarnation = client.session.client, client.session.incarnation
        self.clock.after(0.01, partial(self.coordinator.lost, name, incarnation))

    def start_again(self, name: str, time: int, after_s: float) -> None:
        """As another process under another name, as everybody's is: for this time at least, if it had none like it."""
        self.coming += 1
        nth = self.starts[name] = max(time, self.starts.get(name, 0) + 1)

        def start() -> None:
            self.coming -= 1
            actor = self.people[name] = self.programs[name](nth)
            actor.on_refused = lambda: self.start_again(name, nth + 1, 0.5)

        self.clock.after(after_s, start)

    def notice_reset(self, one: str, other: str) -> None:
        """Both ends see that their connection broke, and have another."""
        for name, peer in ((one, other), (other, one)):
            if name in self.hosts and peer == COORDINATOR and self.coordinator is not None:
                self.clock.after(0.01, partial(self.coordinator.lost, name, self.hosts[name].host.incarnation))
            elif name in self.hosts and peer in self.hosts:
                self.clock.after(0.01, partial(self.hosts[name].reconnect, peer))
            elif name in self.people and peer in self.hosts:
                self.clock.after(0.01, partial(self.people[name].lost, peer))
            elif name in self.people and peer == COORDINATOR:
                self.hang_up(self.people[name])

    def now_s(self, name: str) -> float:
        """What a machine's own clock says."""
        return self.clock.now_s * self.rates.get(name, 1.0)

    def every_tick(self, action: Callable[[], None], alive: Callable[[], bool], name: str) -> None:
        """Call `action` regularly by a machine's own clock, beginning some time within the first tick."""
        tick_s = TICK_S / self.rates.get(name, 1.0)

        def again() -> None:
            if alive():
                action()
                self.clock.after(tick_s, again)

        self.clock.after(self.random.random() * tick_s, again)


class ClientActor(Process):
    """Runs a Session and a script; notes in the history what was asked and answered."""

    keeps_what_is_left_out = False  # whether its keys are compressed

    def __init__(self, world: World, session: Session[Number], script: Script) -> None:
        super().__init__()
        self.world = world
        self.session = session
        self.finished = False
        self.open: dict[int, Operated] = {}
        self.pushes: Counter[str] = Counter()  # how often each key was pushed
        self.layouts: dict[int, BlockLayout] = {}  # of the open operations
        self._then: dict[int, Callable[[Done[Number]], None]] = {}  # who wants to know how they ended
        self._waits: set[int] | None = None
        self.on_refused: Callable[[], None] = lambda: None  # it could not even begin
        self._script = script(self)
        self._started = False
        world.clients[session.client] = self
        world.every_tick(lambda: self.deliver(self._tick), lambda: self.alive, session.client)

    @property
    def now_s(self) -> float:
        return self.world.now_s(self.session.client)

    @property
    def at_rest(self) -> bool:
        """Has its script ended, and everything it asked for been answered?"""
        return not self.alive or (self.finished and not self.open)

    # --- for scripts ---

    def init(self, spec: KeySpec) -> int:
        self.session.learn(spec)
        layout = self.session.layout((spec.key,))
        sequence, told = self.session.init(spec, [Number(0, p.count) for p in layout.pieces], self.now_s)
        return self._asked(sequence, told, Operated(self.session.client, -1, sequence, "init", 0.0, ()))

    def push(self, keys: tuple[str, ...], weight: float = 1.0, *, pull: bool = False) -> int:
        """Push a number that tells which push it was."""
        digit = self.world.next_digit
        self.world.next_digit += 1
        layout = self.session.layout(keys)
        self.pushes.update(keys)
        numbers = [self._number(piece.key, digit) for piece in layout.pieces]
        values = [Number(number, piece.count) for number, piece in zip(numbers, layout.pieces, strict=True)]
        sequence, told = self.session.push(layout, values, now_s=self.now_s, weight=weight, pull=pull)
        operated = self._operated(sequence, "push", layout)
        operated.pushed, operated.digit, operated.weight = (
            dict(zip(operated.places, numbers, strict=True)),
            digit,
            weight,
        )
        return self._asked(sequence, told, operated)

    def _number(self, key: str, digit: int) -> int:
        """In sums and last values: which push of the run; in rounds, where a run's order must not matter: whose."""
        if self.session.specs[key].delay is not None:
            return 1 + 1009 * self.session.worker + 7919 * self.pushes[key]
        return 1 << (DIGIT_BITS * digit) if self.session.specs[key].update.name == "add" else 1000 + digit

    def pull(self, keys: tuple[str, ...]) -> int:
        layout = self.session.layout(keys)
        sequence, told = self.session.pull(layout, now_s=self.now_s)
        return self._asked(sequence, told, self._operated(sequence, "pull", layout))

    def flush(self) -> set[int]:
        """Push all that compression has left out: here it leaves nothing out."""
        return set()

    def configure(self, key: str, rate: int, from_round: int) -> int:
        sequence, told = self.session.configure(key, {"rate": rate}, from_round, self.now_s)
        operated = Operated(self.session.client, -1, sequence, "configure", 0.0, ())
        self.world.history.rates[key] = (from_round, rate, operated)
        return self._asked(sequence, told, operated)

    def list_keys(self, then: Callable[[Done[Number]], None]) -> int:
        sequence, told = self.session.keys("", self.now_s)
        return self._asked_servers(sequence, told, "keys", then)

    def ask(self, question: Question, then: Callable[[Done[Number]], None]) -> int:
        """Something that every server is asked."""
        sequence, told = self.session.ask(question, self.now_s)
        return self._asked_servers(sequence, told, "ask", then)

    def _asked_servers(
        self, sequence: int, told: list[SessionInstruction[Number]], kind: str, then: Callable[[Done[Number]], None]
    ) -> int:
        self._then[sequence] = then
        return self._asked(sequence, told, Operated(self.session.client, -1, sequence, kind, 0.0, ()))

    def leave(self) -> None:
        self._do(self.session.leave())

    def announce_leave(self) -> int:
        until, told = self.session.announce_leave()
        self._do(told)
        return until

    def _operated(self, sequence: int, kind: str, layout: BlockLayout) -> Operated:
        operation = self.session.operations.get(sequence)  # None: what it builds on was lost, and it is over already
        self.layouts[sequence] = layout
        places = tuple[Place, ...]((piece.key, piece.block) for piece in layout.pieces)
        now_s, round_ = self.world.clock.now_s, operation.round if operation else 0
        return Operated(self.session.client, self.session.worker, sequence, kind, now_s, places, round_)

    def _asked(self, sequence: int, told: list[SessionInstruction[Number]], operated: Operated) -> int:
        self.open[sequence] = operated
        self.world.history.operations.append(operated)
        self._do(told)
        return sequence

    # --- for the world ---

    def hear(self, message: Message) -> None:
        self._do(self.session.hear(message, self.now_s))

    def receive(self, server: str, message: Reply, values: tuple[Number, ...]) -> None:
        operated = self.open.get(message.sequence)
        if isinstance(message, Pushed) and operated is not None and operated.kind == "push" and not operated.round:
            self.world.history.note_ack(self.session.client, server, message)
        self._do(self.session.receive(server, message, values, self.now_s))

    def lost(self, server: str) -> None:
        self.deliver(lambda: self._do(self.session.lost(server, self.now_s)))

    def _tick(self) -> None:
        self._do(self.session.tick(self.now_s))
        if self.session.ready and not self._started:
            self._started = True
            self._resume()

    def _do(self, told: Iterable[SessionInstruction[Number]]) -> None:
        finished = False
        for instruction in told:
            match instruction:
                case Send():
                    self._send(instruction)
                case TellCoordinator():
                    self.world.tell_coordinator(self.session.client, instruction.message)
                case Done():
                    self._note(instruction)
                    finished = True
        if self.session.expelled and self.alive:
            self.kill()
            if not self._started:
                self.on_refused()
        elif finished and self._waits is not None and self._waits.isdisjoint(self.open):
            self._waits = None
            self.world.clock.after(0.0, lambda: self.deliver(self._resume))

    def _send(self, send: Send[Number]) -> None:
        host, wire, values = self.world.hosts[send.server.name], encode(send.message), tuple(send.values)
        deliver = lambda: host.deliver(lambda: host.receive(decode(wire), values))  # type: ignore[arg-type]  # noqa: E731
        self.world.network.send(self.session.client, send.server.name, deliver)

    def _note(self, done: Done[Number]) -> None:
        operated = self.open.pop(done.sequence)
        operated.done_s = self.world.clock.now_s
        operated.refused = done.refused.reason if done.refused else ""
        operated.staleness = done.staleness
        if operated.kind in ("push", "pull") and not operated.round and done.refused is None:
            operated.versions = dict(done.versions)
        if done.values and done.refused is None:
            self._note_values(operated, done)
        if then := self._then.pop(done.sequence, None):
            then(done)

    def _note_values(self, operated: Operated, done: Done[Number]) -> None:
        for part in self.layouts.pop(done.sequence).parts:
            for piece, value in zip(part.pieces, done.values[part.shard], strict=True):
                operated.values[piece.key, piece.block] = value.number

    def _resume(self) -> None:
        if not self.alive or self.finished:
            return
        wish = next(self._script, None)
        if wish is None:
            self.finished = True
        elif isinstance(wish, set):
            if wish.isdisjoint(self.open):
                self.world.clock.after(0.0, lambda: self.deliver(self._resume))
            else:
                self._waits = wish
        else:
            self.world.clock.after(wish, lambda: self.deliver(self._resume))
