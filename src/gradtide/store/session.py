"""A client of the store, pure: routes, sequences, resends, credits, and when each operation is over.

How a shell drives it:

    session.tick(now_s)                          every 50 ms or so: joins, beats, resends what is overdue
    session.hear(message, now_s)                 from the coordinator: Welcome, Table, Decree
    session.receive(server, message, values, now_s)    from a server; `expects(message)` says which pieces follow
    session.lost(server, now_s)                  a connection broke: what it carried is sent again
    session.push(layout, values, now_s=...)      and init, pull, configure, keys: return (sequence, instructions)

Each returns instructions: `Send` and `TellCoordinator` are to be sent in order, `Done` resolves the handle of that
sequence. Begin when `session.ready`. Values are kept, and must not change, until their operation is `Done`.

A sequence counts all requests; `after` names the latest earlier push to a shard that is unanswered, so a shard admits
what a client says in the order it was said, whatever the network does.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gradtide.store.beats import Heart
from gradtide.store.layouts import Layout, build_layout
from gradtide.store.messages import (
    NO_WORKER,
    RETRYABLE,
    Beat,
    CutBegun,
    CutWritten,
    Decree,
    Initialised,
    Join,
    KeySpec,
    Leave,
    Listed,
    Member,
    Message,
    Noted,
    Part,
    Pulled,
    Push,
    Pushed,
    Question,
    Refused,
    Reply,
    ServerEntry,
    Source,
    Table,
    Version,
    Welcome,
)
from gradtide.store.operations import Flight, Kind, Operation, SessionInstruction, TellCoordinator
from gradtide.store.sending import Sending, SessionOptions

__all__ = ["Session", "SessionOptions"]

V = TypeVar("V")
Instructions = list[SessionInstruction[V]]

LAYOUTS_KEPT = 256
LEAVE_AHEAD = 3  # rounds from the word that a worker will go to the first without it, for all to have heard of it


@dataclass(slots=True)
class Session(Sending[V]):
    """The state of one client."""

    member: Member | None = None
    expelled: str = ""  # why this worker is no longer in the rounds
    heart: Heart = field(default_factory=Heart)
    sequence: int = 0
    step: int = 0  # the step this worker is in
    specs: dict[str, KeySpec] = field(default_factory=dict)
    seen: dict[int, Version] = field(default_factory=dict)  # shard -> the latest version read or written
    rolled_back: dict[int, Version] = field(default_factory=dict)  # shard -> what was seen of it before it was lost
    rewound: Source | None = None  # all shards went back to this, and the user has not taken note of it yet
    _next_round: dict[str, int] = field(default_factory=dict)  # key -> the first round it can still be pushed for
    _layouts: "OrderedDict[object, Layout]" = field(default_factory=OrderedDict)

    @property
    def ready(self) -> bool:
        """Is there somewhere to send to, and, for a worker, a round to be in?"""
        return self.table is not None and (self.worker == NO_WORKER or self.member is not None)

    @property
    def members(self) -> tuple[int, ...]:
        """The workers in the rounds from the step on that this one is in, as far as is known here."""
        members = self.decree.members if self.decree is not None else ()
        return tuple(member.worker for member in members if member.is_in(max(1, self.step)))

    @property
    def degraded(self) -> int:
        """How many shards have no replica in sync although they should."""
        return self.table.backups.count(()) if self.table is not None and self.table.replicas else 0

    # --- what a user asks for ---

    def layout(self, keys: Sequence[str], rows: slice | None = None) -> Layout:
        """The pieces of these keys; kept, so asking again for the same set costs one lookup."""
        name = (tuple(keys), None if rows is None else (rows.start, rows.stop))
        known = self._layouts.get(name)
        if known is None:
            known = self._layouts[name] = build_layout((self.specs[key], rows) for key in keys)
            if len(self._layouts) > LAYOUTS_KEPT:
                self._layouts.popitem(last=False)
        return known

    def learn(self, spec: KeySpec) -> None:
        """A key that somebody else initialised (from Keys), or that this client is about to."""
        if self.specs.get(spec.key, spec) != spec:
            self._layouts.clear()
        self.specs[spec.key] = spec

    def forget(self, key: str) -> None:
        """A key whose `init` was refused."""
        self.specs.pop(key, None)
        self._layouts.clear()

    def init(self, spec: KeySpec, values: Sequence[V], now_s: float) -> tuple[int, Instructions[V]]:
        """Create a key; `values` by `pieces_of(spec)` in the order of its layout."""
        self.learn(spec)
        operation = self._begin("init", self.layout((spec.key,)), values)
        operation.spec = spec
        return self._start(operation, now_s)

    def push(
        self,
        layout: Layout,
        values: Sequence[V],
        *,
        now_s: float,
        weight: float | None = None,
        round_: int = 0,
        pull: bool = False,
    ) -> tuple[int, Instructions[V]]:
        """Add contributions. A worker's go to the step it is in, or to the next when a key has had its push."""
        operation = self._begin("push", layout, values)
        operation.weight, operation.wants_values = weight, pull
        operation.round = self._advance_step(layout, round_, pushing=True)
        for part in layout.parts:
            self._unanswered.setdefault(part.shard, []).append(operation.sequence)
        return self._start(operation, now_s)

    # The quick way: one small push with nothing else under way costs a few microseconds instead of thirty. Until its
    # answer is here the session must be told nothing else: whoever wants to calls `quick_register` first, which turns
    # it into an operation like any other.

    def quick_push(self, layout: Layout, weight: float | None) -> tuple[ServerEntry, Push] | None:
        """A push of one piece outside of rounds that also pulls; None when that needs the ordinary way."""
        if self.operations or self.rolled_back or self.table is None or len(layout.pieces) != 1:
            return None
        (share,) = layout.shares(self.table)
        if (share.server, share.name) not in self._known_layouts or self.specs[layout.keys[0]].delay is not None:
            return None
        self.sequence += 1
        head = (self.table.epoch, self.client, self.incarnation, self.sequence, share.name)
        return self.table.servers[share.server], Push(*head, weight=weight, worker=self.worker, pull=True)

    def quick_answered(self, answer: Pushed) -> None:
        """It was answered as hoped."""
        seen = self.seen.get(answer.shard)
        if seen is None or seen < answer.version:
            self.seen[answer.shard] = answer.version

    def quick_register(self, layout: Layout, values: Sequence[V], weight: float | None, now_s: float) -> int:
        """It was sent and not answered yet, and something else is about to happen; returns its sequence."""
        self.sequence -= 1
        operation = self._begin("push", layout, values)
        operation.weight, operation.wants_values = weight, True
        self._unanswered.setdefault(layout.parts[0].shard, []).append(operation.sequence)
        self._plan(operation)
        for flight in operation.flights.values():
            flight.sent, flight.tries, flight.due_s = True, 1, now_s + self.options.resend_s
        return operation.sequence

    def pull(
        self,
        layout: Layout,
        *,
        now_s: float,
        round_: int = 0,
        at_least: Mapping[int, Version] | None = None,
    ) -> tuple[int, Instructions[V]]:
        """Read. `at_least`: the `versions` of an earlier operation, by anybody."""
        operation = self._begin("pull", layout, ())
        operation.wants_values = True
        operation.round = self._advance_step(layout, round_, pushing=False)
        operation.asked = dict(at_least or {})
        for part in layout.parts:
            least = max(self.seen.get(part.shard, Version()), operation.asked.get(part.shard, Version()))
            operation.required[part.shard] = least
        return self._start(operation, now_s)

    def configure(
        self, key: str, changes: dict[str, bool | int | float], from_round: int, now_s: float
    ) -> tuple[int, Instructions[V]]:
        """Change an update rule's arguments everywhere the key lives."""
        operation = self._begin("configure", self.layout((key,)), ())
        operation.changes, operation.from_round = changes, from_round
        for part in operation.layout.parts:
            self._unanswered.setdefault(part.shard, []).append(operation.sequence)
        return self._start(operation, now_s)

    def keys(self, prefix: str, now_s: float) -> tuple[int, Instructions[V]]:
        """Which keys are there? Asked of every server."""
        assert self.table is not None
        operation = self._begin("keys", Layout((), (), ()), ())
        operation.prefix = prefix
        operation.unanswered = set(self.table.owners)  # whoever is primary of nothing has nothing to list
        return self._start(operation, now_s)

    def ask(self, question: Question, now_s: float) -> tuple[int, Instructions[V]]:
        """Something that every server is asked."""
        assert self.table is not None
        operation = self._begin("ask", Layout((), (), ()), ())
        operation.question = question
        operation.unanswered = set(self.table.owners)
        return self._start(operation, now_s)

    @property
    def last_round(self) -> int:
        """The last round that this worker has pushed for, or has come by; no later one can close before it pushes."""
        first = self.member.from_round if self.member is not None else 1
        return max(self._next_round.values(), default=first) - 1

    def announce_leave(self) -> tuple[int, Instructions[V]]:
        """Say that this worker will go soon; returns the first round that it need not be in."""
        until = self.step + LEAVE_AHEAD
        return until, [TellCoordinator(Leave(self.client, self.incarnation, until))]

    def leave(self) -> Instructions[V]:
        """Say goodbye: nobody waits for this worker any more."""
        return [TellCoordinator(Leave(self.client, self.incarnation))]

    def _begin(self, kind: Kind, layout: Layout, values: Sequence[V]) -> Operation[V]:
        assert self.ready, "wait for session.ready"
        self.sequence += 1
        operation = Operation(self.sequence, kind, layout, values, {part.shard for part in layout.parts})
        self.operations[self.sequence] = operation
        return operation

    def _start(self, operation: Operation[V], now_s: float) -> tuple[int, Instructions[V]]:
        if self.rolled_back and (told := self._roll_back(operation, self.rolled_back)):
            return operation.sequence, told
        self._plan(operation)
        return operation.sequence, self._send_what_fits(now_s)

    def _advance_step(self, layout: Layout, round_: int, *, pushing: bool) -> int:
        """The step that this operation belongs to; 0 when this client or these keys are in no rounds."""
        if self.member is None or all(self.specs[key].delay is None for key in layout.keys):
            return 0
        step = round_ or max(self.step, max(self._next_round.get(key, 0) for key in layout.keys))
        self.step = max(self.step, step)
        for key in layout.keys:
            self._next_round[key] = max(self._next_round.get(key, 0), step + 1 if pushing else step)
        return step

    # --- what others say ---

    def tick(self, now_s: float) -> Instructions[V]:
        """Time goes by."""
        told: Instructions[V] = []
        if self.heart.is_due(now_s):
            told.append(TellCoordinator(self._beat() if self.heart.welcomed else self._join()))
        return told + self._resend(now_s) + self._send_what_fits(now_s)

    def hear(self, message: Message, now_s: float) -> Instructions[V]:
        """The coordinator said something."""
        match message:
            case Welcome() if message.incarnation == self.incarnation:
                self.heart.welcome(message, now_s)
                return self._expel(self.heart.refused) if self.heart.refused else []
            case Table() if self.table is None or (message.term, message.epoch) > (self.table.term, self.table.epoch):
                return self._take_table(message, now_s)
            case Decree() if self.decree is None or message.number > self.decree.number:
                return self._take_decree(message)
        return []

    def _take_table(self, table: Table, now_s: float) -> Instructions[V]:
        """Who holds what has changed: what is open goes to who holds it now, unless what it builds on is gone."""
        self.table = table
        self._known_layouts.clear()
        told = self._learn_what_was_lost(table)
        for operation in self.operations.values():
            self._plan(operation)
        return told + self._send_what_fits(now_s)

    def _learn_what_was_lost(self, table: Table) -> Instructions[V]:
        """More servers died than there were replicas: whoever has seen what is gone must be told."""
        for shard, epoch in enumerate(table.lost if any(table.lost) else ()):
            seen = self.seen.get(shard)
            if seen is not None and seen.epoch < epoch:
                self.rolled_back[shard] = seen
                del self.seen[shard]
                source = table.source_of(shard)
                self.rewound = source if source is not None and source.rewind else self.rewound
        if not self.rolled_back:
            return []
        gone = dict(self.rolled_back)
        return [t for operation in list(self.operations.values()) for t in self._roll_back(operation, gone)]

    def _roll_back(self, operation: Operation[V], gone: Mapping[int, Version]) -> Instructions[V]:
        """Operations on keys of which something is gone fail and say so, once; when all shards went back together, so
        does every operation, until the user has taken note of it."""
        if operation.kind == "keys":
            return []
        if self.rewound is not None:
            return self._finish(operation, Refused(operation.sequence, -1, "rolled_back", _went_back(self.rewound)))
        shards = {part.shard for part in operation.layout.parts}.intersection(gone)
        if not shards or operation.kind == "init":
            return []
        names = {piece.key for part in operation.layout.parts if part.shard in shards for piece in part.pieces}
        seen = max(gone[shard] for shard in shards)
        assert self.table is not None
        source = self.table.source_of(min(shards))
        for shard in shards:
            self.rolled_back.pop(shard, None)
        where = "nothing" if source is None else f"the checkpoint {source.folder}"
        what = "init again, from a checkpoint if there is one" if source is None else "pull, and go on"
        text = (
            f"{', '.join(sorted(names))} went back from version {seen.epoch}.{seen.sequence} to {where}: more servers "
            f"died than there were replicas; {what}"
        )
        return self._finish(operation, Refused(operation.sequence, -1, "rolled_back", text))

    def rewind(self) -> Source | None:
        """The user takes note that all shards went back; to what, or None if they did not."""
        source, self.rewound = self.rewound, None
        if source is not None:
            self.rolled_back.clear()
            self._next_round.clear()
            self.step = max(source.round + 1, self.member.from_round) if self.member is not None else 0
        return source

    def expects(self, message: Reply) -> Part | None:
        """The pieces that follow this reply, and so where its payload belongs; None: nothing that is open."""
        operation = self.operations.get(message.sequence)
        if operation is None or not isinstance(message, Pulled | Pushed) or not operation.wants_values:
            return None
        return next((part for part in operation.layout.parts if part.shard == message.shard), None)

    def receive(self, server: str, message: Reply, values: Sequence[V], now_s: float) -> Instructions[V]:
        """A server answered."""
        operation = self.operations.get(message.sequence)
        index = self._server_index(server)
        if operation is None or index is None:
            return []
        flight = operation.flights.get(index)
        if isinstance(message, Refused) and message.reason in RETRYABLE:
            return self._retry(operation, flight, message, now_s)
        if flight is not None:
            self._land(operation, flight, now_s)
        match message:
            case Refused():
                done: Instructions[V] = self._finish(operation, message)
            case Listed():
                operation.listed.append(message)
                done = self._answered(operation, index)
            case CutBegun() | CutWritten():
                if index in operation.unanswered:  # else it was said twice
                    operation.told.append(message)
                done = self._answered(operation, index)
            case Noted():
                done = []
            case Initialised() | Pushed() | Pulled():
                done = self._take_answer(operation, message, values)
        return done + self._send_what_fits(now_s)

    def lost(self, server: str, now_s: float) -> Instructions[V]:
        """The connection to a server broke: what it carried goes again, in order, over the next one."""
        index = self._server_index(server)
        if index is None:
            return []
        self._known_layouts = {known for known in self._known_layouts if known[0] != index}
        for operation in self.operations.values():
            if index in operation.flights:
                operation.flights[index].sent = operation.flights[index].landed = False
        return self._send_what_fits(now_s)

    # --- answers ---

    def _take_answer(
        self, operation: Operation[V], message: Initialised | Pushed | Pulled, values: Sequence[V]
    ) -> Instructions[V]:
        shard = message.shard
        if shard not in operation.unanswered:
            return []
        if isinstance(message, Pulled) and message.version < operation.required.get(shard, Version()):
            return []  # it was read before something that this client has seen since: the resend will bring a newer one
        operation.answers[shard] = message
        if operation.wants_values:
            operation.results[shard] = tuple(values)
        self.seen[shard] = max(self.seen.get(shard, Version()), message.version)
        return self._answered(operation, shard)

    def _answered(self, operation: Operation[V], whom: int) -> Instructions[V]:
        operation.unanswered.discard(whom)
        for flight in operation.flights.values():
            flight.open.discard(whom)
        if operation.kind in ("push", "configure"):
            self._drop_unanswered(whom, operation.sequence)
        return [] if operation.unanswered else self._finish(operation, None)

    def _finish(self, operation: Operation[V], refused: Refused | None) -> Instructions[V]:
        del self.operations[operation.sequence]
        if operation.kind in ("push", "configure"):
            for shard in operation.unanswered:
                self._drop_unanswered(shard, operation.sequence)
        return [operation.done(refused)]

    def _drop_unanswered(self, shard: int, sequence: int) -> None:
        pushes = self._unanswered.get(shard, [])
        if sequence in pushes:
            pushes.remove(sequence)

    def _land(self, operation: Operation[V], flight: Flight, now_s: float) -> None:
        """The server has it: its credit is free, and there is no hurry to resend."""
        flight.landed = True
        flight.due_s = max(flight.due_s, now_s + self.options.resend_most_s)
        name = next((share.name for share in self._shares(operation) if share.server == flight.server), None)
        if name is not None and operation.kind in ("push", "pull"):
            self._known_layouts.add((flight.server, name))

    def _retry(self, operation: Operation[V], flight: Flight | None, message: Refused, now_s: float) -> Instructions[V]:
        """A no that may turn into a yes."""
        if flight is None:
            return []
        # A server that has not heard of a table or a decree yet will in a moment; one that is busy takes longer.
        soon_s = self.options.resend_s / (4 if message.reason == "busy" else 40)
        flight.due_s = min(flight.due_s, now_s + soon_s)
        if message.reason == "layout":
            self._known_layouts = {known for known in self._known_layouts if known[0] != flight.server}
            return self._launch(operation, flight, now_s)
        if message.reason == "early":
            for earlier in self._unanswered.get(message.shard, []):
                before = self.operations[earlier].flights.get(flight.server)
                if earlier < operation.sequence and before is not None and not before.landed:
                    before.due_s = min(before.due_s, now_s)
        if message.reason == "epoch" and self.table is not None and message.epoch > self.table.epoch:
            return [TellCoordinator(self._beat())]
        return []

    # --- membership ---

    def _join(self) -> Join:
        return Join(
            "client" if self.worker == NO_WORKER else "worker",
            self.client,
            self.incarnation,
            worker=self.worker,
            expected=self.expected,
        )

    def _beat(self) -> Beat:
        term, epoch = (self.table.term, self.table.epoch) if self.table else (0, 0)
        return Beat(self.client, self.incarnation, term, epoch, self.decree.number if self.decree else 0)

    def _take_decree(self, decree: Decree) -> Instructions[V]:
        self.decree = decree
        mine = [m for m in decree.members if (m.client, m.incarnation) == (self.client, self.incarnation)]
        if mine and self.member is None:
            self.member = mine[0]
            self.step = self.member.from_round
        if not mine and self.member is not None:
            return self._expel(
                f"worker {self.worker} is no longer in the rounds: its lease ran out or it left; connect again"
            )
        return []

    def _expel(self, text: str) -> Instructions[V]:
        """This worker is out: what it still waits for in rounds will never come."""
        self.expelled = text
        waiting = [operation for operation in self.operations.values() if operation.round]
        done: Instructions[V] = []
        for operation in waiting:
            done += self._finish(operation, Refused(operation.sequence, -1, "not_member", text))
        return done


def _went_back(source: Source) -> str:
    return (
        f"all shards went back to the checkpoint {source.folder} of round {source.round}: more servers died than there "
        f"were replicas; call store.rewind() and go on with step {source.round + 1}"
    )
