"""A client of the store, pure: routes, sequences, resends, credits, and when each operation is over.

How a shell drives it:

    session.tick(now_s)                          every 50 ms or so: joins, beats, resends what is overdue
    session.hear(message, now_s)                 from the coordinator: Welcome, Table, Decree
    session.receive(server, message, values, now_s)    from a server
    session.lost(server, now_s)                  a connection broke: what it carried is sent again
    session.push(layout, values, now_s=...)      and init, pull, configure, keys: return (sequence, instructions)

Each returns instructions: `Send` and `TellCoordinator` are to be sent in order, `Done` resolves the handle of that
sequence. Begin when `session.ready`. Values are kept, and must not change, until their operation is `Done`.

A sequence counts all requests; `after` names the latest earlier push to a shard that is unanswered, so a shard admits
what a client says in the order it was said, whatever the network does.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from gradtide.store.client.losses import Losses
from gradtide.store.client.operations import Flight, Kind, Operation, SessionInstruction, TellCoordinator
from gradtide.store.client.sending import Sending, SessionOptions, Suspect
from gradtide.store.shard.lease import Lease
from gradtide.store.wire.layouts import BlockLayout, EncodedBytes, build_layout
from gradtide.store.wire.messages import (
    NO_WORKER,
    RETRYABLE,
    Argument,
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
    Pulled,
    Pushed,
    Question,
    Refused,
    Reply,
    Rival,
    Source,
    Table,
    Version,
    Welcome,
)

__all__ = ["Session", "SessionOptions"]

V = TypeVar("V")
Instructions = list[SessionInstruction[V]]

LAYOUTS_KEPT = 256
_HANG_UPS = 3
_DECREES_KEPT = 16
_SURELY_ALIVE = 3  # answers with news of who has this worker's number, before this one gives up
# Rounds from the word that a worker will go to the first without it, for all to have heard of it; besides those by
# which others may be ahead.
LEAVE_AHEAD = 3


@dataclass(slots=True)
class Session(Sending[V]):
    """The state of one client."""

    member: Member | None = None
    rival: Rival | None = None  # who has this worker's number, and may have ended without a word
    heard_again: int = 0  # how often there was news of it since
    expelled: str = ""  # why this worker is no longer in the rounds
    doubtful: bool = False  # a server said that it is not: who is in them is asked for again, whatever is known here
    token: int = 0  # by which the coordinator knows it until it has an incarnation
    lease: Lease = field(default_factory=Lease)
    sequence: int = 0
    step: int = 0  # the step this worker is in
    decrees: list[Decree] = field(default_factory=list)  # the last ones
    awaited: int = 0  # the decree that says who is in that step, as servers say
    ended: dict[str, Member] = field(default_factory=dict)  # clients that go, or are gone, with the first round without
    specs: dict[str, KeySpec] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    encoded_bytes: EncodedBytes | None = None  # for keys that are compressed
    _next_round: dict[str, int] = field(default_factory=dict)  # key -> the first round it can still be pushed for
    _layouts: "OrderedDict[object, BlockLayout]" = field(default_factory=OrderedDict)

    @property
    def ready(self) -> bool:
        """Is there somewhere to send to, and, for a worker, a round to be in?"""
        return self.table is not None and (self.worker == NO_WORKER or self.member is not None)

    @property
    def members(self) -> tuple[int, ...]:
        """The workers in the step that this one is in, as far as is known here: whom all take for them who are in it,
        though one may have died since."""
        decree = next((one for one in self.decrees if one.number >= self.awaited > 0), self.decree)
        members = decree.members if decree is not None else ()
        return tuple(member.worker for member in members if member.is_in(max(1, self.step)))

    @property
    def knows_members(self) -> bool:
        """Whether it is known here who is in the step that this one is in, after a pull for it."""
        return self.decree is not None and self.decree.number >= self.awaited

    @property
    def round_members(self) -> tuple[Member, ...]:
        """All who are listed, from whichever round on."""
        return self.decree.members if self.decree else ()

    @property
    def degraded(self) -> int:
        """How many shards have no replica in sync although they should."""
        return self.table.backups.count(()) if self.table is not None and self.table.replicas else 0

    # --- what a user asks for ---

    def layout(self, keys: Sequence[str], rows: slice | None = None, encoded: Collection[str] = ()) -> BlockLayout:
        """The pieces of these keys, those of some of them `encoded`; kept, so asking again costs one lookup."""
        name = (tuple(keys), None if rows is None else (rows.start, rows.stop), frozenset(encoded))
        known = self._layouts.get(name)
        if known is None:
            known = self._layouts[name] = build_layout(
                (self.specs[key], rows, self.encoded_bytes if key in encoded else None) for key in keys
            )
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
        layout: BlockLayout,
        values: Sequence[V],
        *,
        now_s: float,
        weight: float | None = None,
        round_: int = 0,
        pull: bool = False,
        settles: bool = False,
    ) -> tuple[int, Instructions[V]]:
        """Add contributions. A worker's go to the step it is in, or to the next when a key has had its push.
        `settles`: if it is refused, the report is to say of every shard whether it is in there nevertheless."""
        operation = self._begin("push", layout, values)
        operation.weight, operation.wants_values, operation.settles = weight, pull, settles
        operation.round = self._advance_step(layout, round_, pushing=True)
        self._order(operation)
        return self._start(operation, now_s)

    def adopt_push(
        self, sequence: int, layout: BlockLayout, values: Sequence[V], weight: float | None, now_s: float
    ) -> None:
        """A push outside of rounds that also pulls, and was sent already under a sequence that was taken here, becomes
        an operation like any other. Nothing else may have begun since."""
        operation = self._enter(sequence, "push", layout, values)
        operation.weight, operation.wants_values = weight, True
        self._order(operation)
        self._assign_flights(operation)
        for flight in operation.flights.values():
            flight.sent, flight.tries, flight.due_s = True, 1, now_s + self.options.resend_s

    def pull(
        self, layout: BlockLayout, *, now_s: float, round_: int = 0, at_least: Mapping[int, Version] | None = None
    ) -> tuple[int, Instructions[V]]:
        """Read. `at_least`: the `versions` of an earlier operation, by anybody."""
        operation = self._begin("pull", layout, ())
        operation.wants_values = True
        operation.round = self._advance_step(layout, round_, pushing=False)
        operation.asked = dict(at_least or {})
        for part in layout.parts:
            least = max(self.losses.seen.get(part.shard, Version()), operation.asked.get(part.shard, Version()))
            operation.required[part.shard] = least
        return self._start(operation, now_s)

    def configure(
        self, key: str, changes: dict[str, Argument], from_round: int, now_s: float
    ) -> tuple[int, Instructions[V]]:
        """Change an update rule's arguments everywhere the key lives."""
        operation = self._begin("configure", self.layout((key,)), ())
        operation.changes, operation.from_round = changes, from_round
        self._order(operation)
        return self._start(operation, now_s)

    def keys(self, prefix: str, now_s: float) -> tuple[int, Instructions[V]]:
        """Which keys are there? Asked of every server."""
        assert self.table is not None
        operation = self._begin("keys", BlockLayout((), (), ()), ())
        operation.prefix = prefix
        operation.unanswered = set(self.table.owners)  # whoever is primary of nothing has nothing to list
        return self._start(operation, now_s)

    def ask(self, question: Question, now_s: float) -> tuple[int, Instructions[V]]:
        """Something that every server is asked."""
        assert self.table is not None
        operation = self._begin("ask", BlockLayout((), (), ()), ())
        operation.question = question
        operation.unanswered = set(self.table.owners)
        return self._start(operation, now_s)

    @property
    def last_round(self) -> int:
        """The last round that this worker has pushed for, or has come by; no later one can close before it pushes."""
        first = self.member.from_round if self.member is not None else 1
        return max(self._next_round.values(), default=first) - 1

    def announce_leave(self, *, now: bool = False) -> tuple[int, Instructions[V]]:
        """Say that this worker will go soon, or `now` that it pushes no more; returns the first round without it."""
        ahead = LEAVE_AHEAD + max((spec.delay or 0 for spec in self.specs.values()), default=0)
        until = self.last_round + 1 if now else self.step + ahead
        return until, [TellCoordinator(Leave(self.client, self.incarnation, until))]

    def leave(self) -> Instructions[V]:
        """Say goodbye: nobody waits for this worker any more."""
        return [TellCoordinator(Leave(self.client, self.incarnation))]

    def _begin(self, kind: Kind, layout: BlockLayout, values: Sequence[V]) -> Operation[V]:
        assert self.ready, "wait for session.ready"
        return self._enter(self.take_sequence(), kind, layout, values)

    def take_sequence(self) -> int:
        """The next one; one that is not used is a gap, and gaps are allowed."""
        self.sequence += 1
        return self.sequence

    def _enter(self, sequence: int, kind: Kind, layout: BlockLayout, values: Sequence[V]) -> Operation[V]:
        operation = Operation(sequence, kind, layout, values, {part.shard for part in layout.parts})
        self.operations[sequence] = operation
        return operation

    def _start(self, operation: Operation[V], now_s: float) -> tuple[int, Instructions[V]]:
        if self.losses.rolled_back and (told := self._roll_back(operation, self.losses.rolled_back)):
            return operation.sequence, told
        self._assign_flights(operation)
        return operation.sequence, self._send_what_fits(now_s)

    def _advance_step(self, layout: BlockLayout, round_: int, *, pushing: bool) -> int:
        """The step that this operation belongs to; 0 when this client or these keys are in no rounds."""
        if self.member is None or all(self.specs[key].delay is None for key in layout.keys):
            return 0
        step = round_ or self.next_step(layout.keys)
        self.step = max(self.step, step)
        for key in layout.keys:
            self._next_round[key] = max(self._next_round.get(key, 0), step + 1 if pushing else step)
        return step

    def next_step(self, keys: Sequence[str]) -> int:
        """The step that an operation on these keys would belong to; 0 when it would be in no rounds."""
        if self.member is None or all(self.specs[key].delay is None for key in keys):
            return 0
        return max(self.step, max(self._next_round.get(key, 0) for key in keys))

    # --- what others say ---

    def tick(self, now_s: float) -> Instructions[V]:
        """Time goes by."""
        told: Instructions[V] = []
        if not self.lease.refused and self.lease.is_due(now_s):
            told.append(TellCoordinator(self._beat(now_s) if self.lease.welcomed else self._join()))
        return told + self._resend(now_s) + self._send_what_fits(now_s)

    def hear(self, message: Message, now_s: float) -> Instructions[V]:
        """The coordinator said something."""
        match message:
            case Welcome() if self._is_for_me(message):
                if self._waits_for(message.rival):
                    return []  # and joins again
                if message.accepted and not self.incarnation:
                    self.incarnation = message.incarnation
                self.lease.welcome(message, now_s)
                return self._expel(self.lease.refused) if self.lease.refused else []
            case _ if not self.incarnation:
                return []  # words that overtook the welcome: the first beat asks for them again
            case Table() if self.table is None or (message.term, message.epoch) > (self.table.term, self.table.epoch):
                return self._take_table(message, now_s)
            case Decree() if message.number >= self._first_news:
                return self._take_decree(message)
        return []

    def _waits_for(self, rival: Rival | None) -> bool:
        """Whether the number may get free: what was heard of its owner may have been on its way when that ended, but
        not again and again."""
        before, self.rival = self.rival, rival
        if rival is None:
            return False
        if before is None or before.name != rival.name:
            self.heard_again = 0
            return True
        self.heard_again += rival.words > before.words
        return self.heard_again < _SURELY_ALIVE

    @property
    def _first_news(self) -> int:
        """The first decree that is worth hearing: the one after the last, or that one again."""
        return 0 if self.decree is None else self.decree.number + (not self.doubtful)

    def _is_for_me(self, welcome: Welcome) -> bool:
        if welcome.incarnation == self.incarnation:
            return True
        return not self.incarnation and welcome.token == self.token

    def _take_table(self, table: Table, now_s: float) -> Instructions[V]:
        """Who holds what has changed: what is open goes to who holds it now, unless what it builds on is gone."""
        self.table = table
        self._known_layouts.clear()
        self._suspects.clear()
        gone = self.losses.learn(table)
        open_now = list(self.operations.values()) if gone else ()
        told = [instruction for operation in open_now for instruction in self._roll_back(operation, gone)]
        for operation in self.operations.values():
            self._assign_flights(operation)
        return told + self._send_what_fits(now_s)

    def _roll_back(self, operation: Operation[V], gone: Mapping[int, Version]) -> Instructions[V]:
        assert self.table is not None
        refused = self.losses.refusal(operation, self.table, gone)
        if refused is None:
            return []
        if not (operation.settles and operation.flights) or self.losses.rewound is not None:
            return self._finish(operation, refused)
        operation.refused = operation.refused or refused
        return [done for shard in operation.unanswered & gone.keys() for done in self._answered(operation, shard)]

    def rewind(self) -> Source | None:
        """The user takes note that all shards went back; to what, or None if they did not."""
        source = self.losses.take_note()
        if source is not None:
            self._next_round.clear()
            self.step = max(source.round + 1, self.member.from_round) if self.member is not None else 0
        return source

    def receive(self, server: str, message: Reply, values: Sequence[V], now_s: float) -> Instructions[V]:
        """A server answered."""
        operation = self.operations.get(message.sequence)
        index = self._server_index(server)
        if index is not None and self._suspects:
            self._suspects.pop(index, None)
        if operation is None or index is None:
            return []
        flight = operation.flights.get(index)
        if isinstance(message, Refused) and message.reason in RETRYABLE:
            return self._retry(operation, flight, message, now_s)
        if flight is not None:
            self._land(operation, flight, now_s)
        match message:
            case Refused():
                done: Instructions[V] = self._take_refusal(operation, flight, message)
                if message.reason == "not_member" and self.member is not None and self.options.rejoin:
                    # It was struck off, and the decree is on its way; or, if this comes late, it is in again since.
                    self.member, self.doubtful = None, True
                    done.append(TellCoordinator(self._beat()))
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
                done = self._take_answer(operation, message, values, now_s)
        return done + self._send_what_fits(now_s)

    def lost(self, server: str, now_s: float, *, hung_up: bool = False) -> Instructions[V]:
        """The connection to a server broke: what it carried goes again, in order, over the next one. `hung_up`: the
        server's process is the same as before, so something that was sent may be why; it is given up in the end."""
        index = self._server_index(server)
        if index is None:
            return []
        self._forget_layouts(index)
        given_up = self._suspect_what_is_not_taken(index, server, now_s) if hung_up else []
        for operation in self.operations.values():
            if index in operation.flights:
                operation.flights[index].sent = operation.flights[index].landed = False
        return given_up + self._send_what_fits(now_s)

    def _suspect_what_is_not_taken(self, index: int, server: str, now_s: float) -> Instructions[V]:
        """A server takes requests in order: if it hangs up, that may be for the first that it has not taken, or the
        network's doing. So that one goes by itself, and is given up if that ends the connection again and again."""
        under_way = [operation for operation, flight in self._open_flights() if _is_under_way(flight, index)]
        if not under_way:
            return []
        first, known = under_way[0], self._suspects.get(index)
        times = known.times if known is not None and known.sequence == first.sequence else 0
        self._suspects[index] = Suspect(first.sequence, times + (len(under_way) == 1), now_s + self.options.resend_s)
        if self._suspects[index].times < _HANG_UPS:
            return []
        del self._suspects[index]
        text = f"server {server} has hung up {_HANG_UPS} times at this request; its own output says why"
        return self._finish(first, Refused(first.sequence, -1, "rule", text))

    # --- answers ---

    def _take_answer(
        self, operation: Operation[V], message: Initialised | Pushed | Pulled, values: Sequence[V], now_s: float
    ) -> Instructions[V]:
        shard = message.shard
        if shard not in operation.unanswered:
            return []
        if isinstance(message, Pulled) and message.version < operation.required.get(shard, Version()):
            for flight in (flight for flight in operation.flights.values() if shard in flight.open):
                self._go_again(flight, now_s + self.options.resend_s)
            return []  # it was read before something that this client has seen since: the resend will bring a newer one
        operation.answers[shard] = message
        if isinstance(message, Pulled):
            self.awaited = max(self.awaited, message.decree)
        if operation.wants_values:
            operation.results[shard] = tuple(values)
        self.losses.saw(shard, message.version)
        return self._answered(operation, shard)

    def _answered(self, operation: Operation[V], whom: int) -> Instructions[V]:
        operation.unanswered.discard(whom)
        for flight in operation.flights.values():
            flight.open.discard(whom)
        if operation.kind in ("push", "configure"):
            self._drop_unanswered(whom, operation.sequence)
        return [] if operation.unanswered else self._finish(operation, operation.refused)

    def _take_refusal(self, operation: Operation[V], flight: Flight | None, message: Refused) -> Instructions[V]:
        """A no that stays one: for this shard, or for all that this server has of it."""
        if not operation.settles:
            return self._finish(operation, message)
        operation.refused = operation.refused or message
        said = {message.shard} if message.shard >= 0 else set(flight.open if flight is not None else ())
        return [done for shard in said & operation.unanswered for done in self._answered(operation, shard)]

    def _finish(self, operation: Operation[V], refused: Refused | None) -> Instructions[V]:
        del self.operations[operation.sequence]
        if operation.kind in ("push", "configure"):
            for shard in operation.unanswered:
                self._drop_unanswered(shard, operation.sequence)
        return [operation.done(refused)]

    def _retry(self, operation: Operation[V], flight: Flight | None, message: Refused, now_s: float) -> Instructions[V]:
        """A no that may turn into a yes."""
        if flight is None:
            return []
        # A server that has not heard of a table or a decree yet will in a moment; one that is busy takes longer.
        soon_s = self.options.resend_s / (4 if message.reason == "busy" else 40)
        self._go_again(flight, now_s + soon_s)
        if message.reason == "layout":
            self._forget_layouts(flight.server)
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
            "client" if self.worker == NO_WORKER else "worker", self.client, self.incarnation,
            worker=self.worker, expected=self.expected, token=self.token,
        )  # fmt: skip

    def _beat(self, now_s: float = 0.0) -> Beat:
        """`now_s`: when it is sent; one that is not by the clock does not say."""
        term, epoch = (self.table.term, self.table.epoch) if self.table else (0, 0)
        decree = self.decree.number if self.decree and not self.doubtful else 0
        return Beat(self.client, self.incarnation, term, epoch, decree, now_s)

    def _take_decree(self, decree: Decree) -> Instructions[V]:
        self._note_ends(decree)
        self.decree, self.doubtful = decree, False
        self.decrees = [*self.decrees[-_DECREES_KEPT:], decree]
        mine = [m for m in decree.members if (m.client, m.incarnation) == (self.client, self.incarnation)]
        if mine and self.member is None:
            self.member = mine[0]
            self.step = max(self.step, self.member.from_round)
        if not mine and self.member is not None:
            self.member = None  # what is on its way is answered by those where it arrives: whether it counted
            if not self.options.rejoin:
                return self._expel(f"worker {self.worker} is no longer in the rounds; connect again")
        return []

    def _note_ends(self, decree: Decree) -> None:
        """Who has said before which round it goes; or was listed until now, and is no longer."""
        listed, round_ = {member.client for member in decree.members}, max(1, self.step)
        gone = [replace(member, until=round_) for member in self.round_members if member.client not in listed]
        for member in [member for member in decree.members if member.until] + gone:
            self.ended.setdefault(member.client, member)

    @property
    def leave_is_known(self) -> bool:
        """Whether a decree says that this worker goes: then it says so of all who went before."""
        return self.client in self.ended

    def _expel(self, text: str) -> Instructions[V]:
        """This worker is out: what it still waits for in rounds will never come."""
        self.expelled = text
        waiting = [operation for operation in self.operations.values() if operation.round]
        refused = [self._finish(each, Refused(each.sequence, -1, "not_member", text)) for each in waiting]
        return [done for some in refused for done in some]


def _is_under_way(flight: Flight, server: int) -> bool:
    return flight.server == server and flight.sent and not flight.landed
