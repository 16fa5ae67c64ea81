"""The shell of the simulator around clients: it moves messages and time, as sockets and clocks would."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from gradtide.store.layouts import Layout
from gradtide.store.messages import KeySpec, Message, Pushed, Reply, encode
from gradtide.store.operations import Done, Send, SessionInstruction, TellCoordinator
from gradtide.store.session import Session
from gradtide.testing.clock import VirtualClock
from gradtide.testing.faults import COORDINATOR
from gradtide.testing.history import History, Operated, Place
from gradtide.testing.network import Network
from gradtide.testing.numbers import DIGIT_BITS, Number
from gradtide.testing.wire import decode

if TYPE_CHECKING:
    from gradtide.testing.processes import CoordinatorActor, HostActor

__all__ = ["ClientActor", "Script", "World"]

TICK_S = 0.2

# A client's program: yields seconds to sleep, or the sequences of operations to wait for.
Script = Callable[["ClientActor"], Generator[float | set[int], None, None]]


@dataclass(slots=True)
class World:
    """What all actors share."""

    clock: VirtualClock
    network: Network
    random: Random
    history: History = field(default_factory=History)
    hosts: dict[str, "HostActor"] = field(default_factory=dict)
    clients: dict[str, "ClientActor"] = field(default_factory=dict)
    coordinator: "CoordinatorActor | None" = None
    journal: bytes = b""  # the coordinator's disk
    next_digit: int = 0

    def tell_coordinator(self, source: str, message: Message) -> None:
        wire = encode(message)
        coordinator = self.coordinator
        assert coordinator is not None
        self.network.send(source, COORDINATOR, lambda: coordinator.deliver(lambda: coordinator.receive(decode(wire))))

    def is_alive(self, name: str, incarnation: int) -> bool:
        actor = self.hosts.get(name)
        return actor is not None and actor.alive and actor.host.incarnation == incarnation

    def close_sockets(self, name: str, incarnation: int) -> None:
        """A server has ended, and its peers notice: the coordinator and the clients."""
        assert self.coordinator is not None
        self.clock.after(0.01, partial(self.coordinator.lost, name, incarnation))
        for client in list(self.clients.values()):
            self.clock.after(0.01, partial(client.lost, name))

    def every_tick(self, action: Callable[[], None], alive: Callable[[], bool]) -> None:
        """Call `action` regularly, beginning some time within the first tick."""

        def again() -> None:
            if alive():
                action()
                self.clock.after(TICK_S, again)

        self.clock.after(self.random.random() * TICK_S, again)


class ClientActor:
    """Runs a Session and a script; notes in the history what was asked and answered."""

    def __init__(self, world: World, session: Session[Number], script: Script) -> None:
        self.world = world
        self.session = session
        self.alive = True
        self.finished = False
        self.open: dict[int, Operated] = {}
        self.pushes: Counter[str] = Counter()  # how often each key was pushed
        self.layouts: dict[int, Layout] = {}  # of the open operations
        self._waits: set[int] | None = None
        self._script = script(self)
        self._started = False
        world.clients[session.client] = self
        world.every_tick(self._tick, lambda: self.alive)

    @property
    def at_rest(self) -> bool:
        """Has its script ended, and everything it asked for been answered?"""
        return not self.alive or (self.finished and not self.open)

    # --- for scripts ---

    def init(self, spec: KeySpec) -> int:
        self.session.learn(spec)
        layout = self.session.layout((spec.key,))
        sequence, told = self.session.init(spec, [Number(0, p.count) for p in layout.pieces], self.world.clock.now_s)
        return self._asked(sequence, told, Operated(self.session.client, -1, sequence, "init", 0.0, ()))

    def push(self, keys: tuple[str, ...], weight: float = 1.0, *, pull: bool = False) -> int:
        """Push a number that tells which push it was."""
        now_s = self.world.clock.now_s
        digit = self.world.next_digit
        self.world.next_digit += 1
        layout = self.session.layout(keys)
        self.pushes.update(keys)
        numbers = [self._number(piece.key, digit) for piece in layout.pieces]
        values = [Number(number, piece.count) for number, piece in zip(numbers, layout.pieces, strict=True)]
        sequence, told = self.session.push(layout, values, now_s=now_s, weight=weight, pull=pull)
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
        sequence, told = self.session.pull(layout, now_s=self.world.clock.now_s)
        return self._asked(sequence, told, self._operated(sequence, "pull", layout))

    def configure(self, key: str, rate: int, from_round: int) -> int:
        sequence, told = self.session.configure(key, {"rate": rate}, from_round, self.world.clock.now_s)
        operated = Operated(self.session.client, -1, sequence, "configure", 0.0, ())
        self.world.history.rates[key] = (from_round, rate, operated)
        return self._asked(sequence, told, operated)

    def leave(self) -> None:
        self._do(self.session.leave())

    def announce_leave(self) -> int:
        until, told = self.session.announce_leave()
        self._do(told)
        return until

    def _operated(self, sequence: int, kind: str, layout: Layout) -> Operated:
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
        if self.alive:
            self._do(self.session.hear(message, self.world.clock.now_s))

    def receive(self, server: str, message: Reply, values: tuple[Number, ...]) -> None:
        if self.alive:
            operated = self.open.get(message.sequence)
            if isinstance(message, Pushed) and operated is not None and operated.kind == "push" and not operated.round:
                self.world.history.note_ack(self.session.client, server, message)
            self._do(self.session.receive(server, message, values, self.world.clock.now_s))

    def lost(self, server: str) -> None:
        if self.alive:
            self._do(self.session.lost(server, self.world.clock.now_s))

    def die(self) -> None:
        """Stop without a word."""
        self.alive = False

    def _tick(self) -> None:
        self._do(self.session.tick(self.world.clock.now_s))
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
        if self.session.expelled:
            self.die()
        elif finished and self._waits is not None and self._waits.isdisjoint(self.open):
            self._waits = None
            self.world.clock.after(0.0, self._resume)

    def _send(self, send: Send[Number]) -> None:
        host, wire, values = self.world.hosts[send.server.name], encode(send.message), tuple(send.values)
        deliver = lambda: host.deliver(lambda: host.receive(decode(wire), values))  # type: ignore[arg-type]  # noqa: E731
        self.world.network.send(self.session.client, send.server.name, deliver)

    def _note(self, done: Done[Number]) -> None:
        operated = self.open.pop(done.sequence)
        operated.done_s = self.world.clock.now_s
        operated.refused = done.refused.reason if done.refused else ""
        operated.staleness = done.staleness
        if done.values and done.refused is None:
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
                self.world.clock.after(0.0, self._resume)
            else:
                self._waits = wish
        else:
            self.world.clock.after(wish, self._resume)
