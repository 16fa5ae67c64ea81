"""What a session has on its way to servers: a flight a server of each operation, sent as credit allows. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec.structs import replace

from gradtide.store.client.operations import Flight, Operation, Send, SessionInstruction
from gradtide.store.wire.credit import ANSWERS_KEPT, CREDIT_BYTES
from gradtide.store.wire.layouts import ServerShare
from gradtide.store.wire.messages import (
    NO_WORKER,
    Configure,
    Decree,
    Init,
    Keys,
    Part,
    Pull,
    Push,
    Question,
    Request,
    Table,
    Version,
)

__all__ = ["Sending", "SessionOptions", "Suspect"]

_MOST_DOUBLINGS = 30  # a float has an end

V = TypeVar("V")
Instructions = list[SessionInstruction[V]]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How patient a client is."""

    resend_s: float = 1.0  # the first wait for an answer; it doubles
    resend_most_s: float = 8.0
    rejoin: bool = True  # a worker that was struck off comes again by itself
    credit_bytes: int = CREDIT_BYTES  # a server's share of pushes that it has not said anything about


@dataclass(frozen=True, slots=True)
class Suspect:
    """The first request that a server had not taken when it hung up."""

    sequence: int
    times: int  # how often in a row when nothing else was under way
    alone_until_s: float  # so long nothing else is sent to that server; then it has evidently kept it


@dataclass(slots=True)
class Sending(Generic[V]):
    """The part of a session's state that sending needs."""

    client: str
    incarnation: int
    worker: int = NO_WORKER
    expected: int = 0  # how many workers the first round should wait for
    options: SessionOptions = field(default_factory=SessionOptions)
    table: Table | None = None
    decree: Decree | None = None
    operations: dict[int, Operation[V]] = field(default_factory=dict)  # by sequence, which is their order
    _unanswered: dict[int, list[int]] = field(default_factory=dict)  # shard -> sequences of pushes
    _known_layouts: set[tuple[int, bytes]] = field(default_factory=set)
    _suspects: dict[int, Suspect] = field(default_factory=dict)  # by server, until it says anything

    def knows_layout(self, share: ServerShare) -> bool:
        """Whether its server does: then its name is enough."""
        return (share.server, share.name) in self._known_layouts

    def _assign_flights(self, operation: Operation[V]) -> None:
        """One flight a server of the table, for what is still unanswered."""
        assert self.table is not None
        if operation.kind in ("keys", "ask"):
            operation.listed.clear()
            operation.told.clear()  # when the table changes, everybody is asked again
            operation.unanswered = set(self.table.owners)
            operation.flights = {index: Flight(index, (), 0, {index}) for index in operation.unanswered}
            return
        carries = operation.kind in ("init", "push")
        operation.flights = {}
        for share in self._shares(operation):
            shards = tuple(part.shard for part in share.parts)
            unanswered = operation.unanswered.intersection(shards)
            if unanswered:
                size_bytes = share.size_bytes if carries else 0
                operation.flights[share.server] = Flight(share.server, shards, size_bytes, unanswered)

    def _send_what_fits(self, now_s: float) -> Instructions[V]:
        """Launch what has not been sent, server by server in order, as far as credit and window go."""
        told: Instructions[V] = []
        in_flight: dict[int, int] = {}
        full: set[int] = set()
        alone = {server for server, suspect in self._suspects.items() if now_s < suspect.alone_until_s}
        for operation, flight in self._open_flights():
            used = in_flight.get(flight.server, 0)
            if not flight.sent and flight.server not in full:
                fits = used == 0 or used + flight.size_bytes <= self.options.credit_bytes
                if fits and self._within_window(operation, flight):
                    told += self._launch(operation, flight, now_s)
                else:
                    full.add(flight.server)
            if flight.sent and not flight.landed:
                in_flight[flight.server] = used + flight.size_bytes
                if flight.server in alone:
                    full.add(flight.server)
        return told

    def _within_window(self, operation: Operation[V], flight: Flight) -> bool:
        """A shard keeps the last answers only: never have more pushes unanswered than it keeps."""
        if operation.kind != "push":
            return True
        oldest = (self._unanswered[shard] for shard in flight.shards)
        return all(len(pushes) <= ANSWERS_KEPT or operation.sequence in pushes[:ANSWERS_KEPT] for pushes in oldest)

    def _open_flights(self) -> Iterator[tuple[Operation[V], Flight]]:
        for operation in self.operations.values():
            for flight in operation.flights.values():
                if flight.open:
                    yield operation, flight

    def _resend(self, now_s: float) -> Instructions[V]:
        """What has waited too long goes again, earlier sequences first."""
        due = [(o, f) for o, f in self._open_flights() if f.sent and f.due_s <= now_s]
        return [instruction for operation, flight in due for instruction in self._launch(operation, flight, now_s)]

    def _launch(self, operation: Operation[V], flight: Flight, now_s: float) -> Instructions[V]:
        assert self.table is not None
        wait_s = min(self.options.resend_s * 2 ** min(flight.tries, _MOST_DOUBLINGS), self.options.resend_most_s)
        flight.sent, flight.tries, flight.due_s, flight.refused = True, flight.tries + 1, now_s + wait_s, False
        share = next((s for s in self._shares(operation) if s.server == flight.server), None)
        values = share.select(operation.values) if share is not None and operation.values else ()
        message = self._request(operation, flight, share.name if share else b"", share.parts if share else ())
        return [Send(self.table.servers[flight.server], message, values)]

    def _request(
        self, operation: Operation[V], flight: Flight, name: bytes, parts: tuple[Part, ...]
    ) -> Request | Question:
        assert self.table is not None
        head = (self.table.epoch, self.client, self.incarnation, operation.sequence)
        known = (flight.server, name) in self._known_layouts
        after = self._after(operation, flight)
        decree = self.decree.number if self.decree and operation.round else 0
        match operation.kind:
            case "init":
                assert operation.spec is not None
                return Init(*head, operation.spec, parts)
            case "push":
                return Push(
                    *head, name, () if known else parts, after, operation.round, self.worker, operation.weight,
                    operation.wants_values, decree,
                )  # fmt: skip
            case "pull":
                least = self._at_least(operation, flight)
                return Pull(*head, name, () if known else parts, after, operation.round, self.worker, least, decree)
            case "configure":
                key = operation.layout.keys[0]
                return Configure(*head, key, operation.changes, flight.shards, after, operation.from_round)
            case "keys":
                return Keys(*head, operation.prefix)
            case "ask":
                assert operation.question is not None
                return replace(operation.question, epoch=head[0], sequence=operation.sequence)

    def _forget_layouts(self, server: int) -> None:
        """It may know none: it is another one, or was started again."""
        self._known_layouts = {known for known in self._known_layouts if known[0] != server}

    def _land(self, operation: Operation[V], flight: Flight, now_s: float) -> None:
        """The server has it: its credit is free, and there is no hurry to resend."""
        flight.landed = True
        if not flight.refused:
            flight.due_s = max(flight.due_s, now_s + self.options.resend_most_s)
        name = next((share.name for share in self._shares(operation) if share.server == flight.server), None)
        if name is not None and operation.kind in ("push", "pull"):
            self._known_layouts.add((flight.server, name))

    def _go_again(self, flight: Flight, at_s: float) -> None:
        """One of its shards has not done it, and will not before it is asked again."""
        flight.refused, flight.due_s = True, min(flight.due_s, at_s)

    def _order(self, operation: Operation[V]) -> None:
        """What comes later to its shards comes after it."""
        for part in operation.layout.parts:
            self._unanswered.setdefault(part.shard, []).append(operation.sequence)

    def _drop_unanswered(self, shard: int, sequence: int) -> None:
        pushes = self._unanswered.get(shard, [])
        if sequence in pushes:
            pushes.remove(sequence)

    def _after(self, operation: Operation[V], flight: Flight) -> tuple[int, ...]:
        """For each shard the latest unanswered push before this operation."""
        found = tuple(
            max((s for s in self._unanswered.get(shard, ()) if s < operation.sequence), default=0)
            for shard in flight.shards
        )
        return found if any(found) else ()

    def _at_least(self, operation: Operation[V], flight: Flight) -> tuple[Version, ...]:
        """What the user asked for, and what was seen before the table changed; within an epoch a shard only goes on."""
        assert self.table is not None
        least = []
        for shard in flight.shards:
            seen = operation.required[shard]
            asked = operation.asked.get(shard, Version())
            least.append(asked if seen.epoch == self.table.epoch else max(seen, asked))
        return tuple(least) if any(version != Version() for version in least) else ()

    def _shares(self, operation: Operation[V]) -> tuple[ServerShare, ...]:
        assert self.table is not None
        return operation.layout.shares(self.table)

    def _server_index(self, name: str) -> int | None:
        servers = self.table.servers if self.table else ()
        return next((i for i, server in enumerate(servers) if server.name == name), None)
