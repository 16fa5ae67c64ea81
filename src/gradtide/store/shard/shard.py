"""One shard: pure. It admits, waits, accumulates, updates and answers; it knows no clock, socket or thread.

`handle(event)` returns what to send, in order. shard_set.py cuts a server's requests into the events below; the shell
(server.py) delivers the answers to the connection that the client has now. Nothing is ever acknowledged on receipt:
`Pushed` is made only after the update; with replicas, everything that was changed is noted in the log (log.py),
which holds the answers back until the replicas have it. What a replica does with an entry is in image.py.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from gradtide.errors import ConfigError
from gradtide.store.rules.arithmetic import Arithmetic, Contribution
from gradtide.store.shard import refusals
from gradtide.store.shard.filter import Answered, Filter, Verdict
from gradtide.store.shard.log import Log
from gradtide.store.shard.refusals import REMEMBERED, TEXTS, Refusal
from gradtide.store.shard.rounds import REMEMBERED_ROUNDS, Block
from gradtide.store.shard.shard_events import (
    Answer,
    ConfigurePart,
    Forget,
    InitPart,
    PullPart,
    PushPart,
    RoundsEmpty,
    ShardEvent,
)
from gradtide.store.wire.messages import (
    Came,
    Configure,
    Configured,
    Decree,
    Init,
    Initialised,
    Member,
    Noted,
    Part,
    Piece,
    Propose,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    RoundsClosed,
    Settled,
    Step,
    Updated,
    Version,
)
from gradtide.store.wire.placement import key_of

if TYPE_CHECKING:
    from gradtide.store.shard.cut import Cut

__all__ = ["Shard"]

V = TypeVar("V")

# A newcomer's first round is this far beyond what anybody has begun here, so that those who run wait for no decree.
JOIN_AHEAD = 2


@dataclass(slots=True)
class Shard(Generic[V]):
    """The state of one shard. All of it: what is here replicates, moves and is checkpointed together."""

    number: int
    arithmetic: Arithmetic[V]
    version: Version = field(default_factory=Version)
    blocks: dict[tuple[str, int], Block[V]] = field(default_factory=dict)
    filter: Filter = field(default_factory=Filter)
    decree: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    promised: int = 0  # the decree that is awaited before rounds from `ceiling` on may close
    ceiling: int | None = None
    told: dict[int, int] = field(default_factory=dict)  # step -> the decree that says who is in it
    waiting_pushes: list[PushPart[V]] = field(default_factory=list)
    waiting_pulls: dict[tuple[str, int], PullPart] = field(default_factory=dict)
    position: Version = field(default_factory=Version)  # of the last entry of the log that is in the state
    log: Log[V] | None = None  # on a primary, in a store with replicas
    cut: "Cut[V] | None" = None  # while a checkpoint is being taken

    def handle(self, event: ShardEvent[V]) -> list[Answer[V]]:
        """Take one event; returns what to send."""
        answers = self._take(event)
        return answers if self.log is None else self._conclude(self.log, answers)

    def _conclude(self, log: Log[V], answers: list[Answer[V]]) -> list[Answer[V]]:
        """One event is one entry of the log; what depends on it is answered when the replicas have it."""
        self.position = log.seal(self.version)
        return log.hold(answers)

    def _take(self, event: ShardEvent[V]) -> list[Answer[V]]:
        match event:
            case PushPart():
                return self._push(event)
            case PullPart():
                return self._pull(event)
            case InitPart():
                return self._init(event)
            case ConfigurePart():
                return self._configure(event)
            case Decree():
                return self._take_decree(event)
            case Forget():
                return self._forget(event)
            case RoundsEmpty():
                return self._end_empty(event.round)

    def promise(self, proposal: Propose) -> int:
        """A round that is not closed here, and will not be before the proposed decree is known."""
        begun = max((block.begun for block in self.blocks.values()), default=0)
        first = begun + 1 + (JOIN_AHEAD if begun and self.members else 0)
        if proposal.number > self.decree:
            self.promised = max(self.promised, proposal.number)
            self.ceiling = first if self.ceiling is None else min(self.ceiling, first)
        return first

    def await_decree(self, number: int) -> None:
        """Close nothing before this decree is known: somebody may be in the rounds of whom this shard never heard."""
        if number > self.decree:
            self.promised = max(self.promised, number)
            self.ceiling = 0

    def adopt_epoch(self, epoch: int) -> None:
        """The table has changed and this shard is still here: versions go on in the new epoch."""
        self.version = Version(epoch, self.version.sequence)

    def take_over(self) -> None:
        """A replica becomes the primary: what the old one had not settled will be said again."""
        self.filter.take_over()
        self.forget_what_waits()

    def forget_what_waits(self) -> None:
        """Nobody here is a primary's client any more, or not yet."""
        self.waiting_pushes.clear()
        self.waiting_pulls.clear()
        for block in self.blocks.values():
            block.forget_what_is_open()

    # --- init ---

    def _init(self, event: InitPart[V]) -> list[Answer[V]]:
        request = event.request
        try:
            fresh = [
                self._make(request, piece, value) for piece, value in zip(event.part.pieces, event.values, strict=True)
            ]
        except Refusal as refusal:
            return [self._refuse(request, refusal)]
        for piece, block, value in zip(event.part.pieces, fresh, event.values, strict=True):
            if block is not None:
                self.blocks[piece.key, piece.block] = block
                self._note(block.created(piece.block), value)
        return [Answer(request.client, Initialised(request.sequence, self.number, self.version))]

    def _make(self, request: Init, piece: Piece, value: V) -> Block[V] | None:
        """A new block; None when it is there already, with the same spec and the same initial value."""
        digest = self.arithmetic.digest(value)
        known = self.blocks.get((piece.key, piece.block))
        if known is None:
            try:
                state = self.arithmetic.create(request.spec, value)
            except ConfigError as error:
                raise Refusal("rule", str(error)) from error
            return Block(request.spec, self.arithmetic.count(value), piece.size_bytes, digest, state)
        if known.spec != request.spec:
            raise refusals.differs(known.spec, request.spec, request.client)
        if known.digest != digest:
            raise refusals.other_values(piece.key, request.client)
        return None

    # --- push and configure ---

    def _push(self, event: PushPart[V]) -> list[Answer[V]]:
        request = event.request
        verdict = self._judge(request, event.after, request.decree)
        if verdict == "answered":
            return [self._repeat(event)]
        if verdict == "waits":
            return [Answer(request.client, Noted(request.sequence, self.number))]
        if verdict != "new":
            return [self._refuse(request, Refusal(verdict, TEXTS[verdict]))]
        try:
            self._check_push(event)
        except Refusal as refusal:
            return [self._refuse(request, refusal)]
        if len(event.part.pieces) == 1 and not self.waiting_pushes and not self.waiting_pulls:
            block = self._find(event.part.pieces[0], request.client)
            if block.spec.delay is None:
                return self._apply_at_once(event, block)
        self.filter.admit(request.client, request.incarnation, request.sequence)
        self.waiting_pushes.append(event)
        answers = self._progress(self._accumulate(event))
        if self.waiting_pushes and self.waiting_pushes[-1] is event:
            answers.append(Answer(request.client, Noted(request.sequence, self.number)))
        return answers

    def _apply_at_once(self, event: PushPart[V], block: Block[V]) -> list[Answer[V]]:
        """One piece outside of rounds while nobody waits: what the general way does, in half the time."""
        request = event.request
        if not self.filter.has_applied_part(request.client, request.sequence):
            self._apply(event.part.pieces[0], block, request, event.values[0])
            self._count_updates(1)
        pushed = Pushed(request.sequence, self.number, self.version)
        self.filter.admit(request.client, request.incarnation, request.sequence)
        self._answer_push(request, pushed)
        return [Answer(request.client, pushed, (block.state.value(),) if request.pull else ())]

    def _judge(self, request: Push | Configure, after: int, decree: int) -> Verdict:
        verdict = self.filter.judge(request.client, request.incarnation, request.sequence, after)
        return "early" if verdict == "new" and decree > self.decree else verdict

    def _repeat(self, event: PushPart[V]) -> Answer[V]:
        """The original answer once more; the values, when it wanted some, are today's, which are never older."""
        request = event.request
        answer = self.filter.answer(request.client, request.sequence)
        wants = request.pull and isinstance(answer, Pushed)
        return Answer(request.client, answer, self._values(event.part) if wants else ())

    def _check_push(self, event: PushPart[V]) -> None:
        for piece, value in zip(event.part.pieces, event.values, strict=True):
            block = self._find(piece, event.request.client)
            if piece.start or piece.count != block.elements:
                raise refusals.wrong_size(piece, block.elements, event.request.client)
            if event.request.pull and block.state.published is not None:
                raise refusals.compressed_push_pull(piece.key, event.request.client)
            if block.spec.reject_nan and self.arithmetic.has_nan(value):
                raise refusals.not_a_number(piece.key, event.request.client)
            if block.spec.delay is not None:
                self._check_slot(block, event.request)

    def _check_slot(self, block: Block[V], request: Push) -> None:
        """May this worker push to this block for this round?"""
        member = self._membership(request)
        closed = request.round <= block.closed and not block.has_counted(request.round, request.worker)
        if request.round < max(1, member.from_round) or closed:
            raise refusals.stale(block.spec.key, block.closed, request, member)
        if block.is_too_early(request.round, request.worker):
            raise refusals.ahead(block.spec.key, block.closed, request)

    def _membership(self, request: Push | Pull) -> Member:
        member = self.members.get(request.worker)
        if member is None or (member.client, member.incarnation) != (request.client, request.incarnation):
            raise refusals.not_member(request.client, request.worker)
        return member

    def _accumulate(self, event: PushPart[V]) -> list[tuple[str, int]]:
        """Apply what is async, and put the rest into its slots; returns the blocks that may now close a round."""
        request, touched, applied = event.request, list[tuple[str, int]](), False
        again = self.filter.has_applied_part(request.client, request.sequence)
        for piece, value in zip(event.part.pieces, event.values, strict=True):
            block = self.blocks[piece.key, piece.block]
            if block.spec.delay is None:
                if not again:
                    self._apply(piece, block, request, value)
                    applied = True
            elif request.round > block.closed:
                block.contribute(request.round, request.worker, Contribution(request.weight, value))
                touched.append((piece.key, piece.block))
        if applied:
            self._count_updates(1)
            if touched:
                self._note(Settled(request.client, request.incarnation, request.sequence, None))
        return touched

    def _apply(self, piece: Piece, block: Block[V], request: Push, value: V) -> None:
        """A push outside of rounds is an update of its own."""
        combined = block.state.combine([Contribution(request.weight, value)])
        self._note(Updated(piece.key, piece.block), combined)
        block.state.apply(combined)

    def _answer_push(self, request: Push | Configure, answer: Answered) -> None:
        self.filter.settle(request.client, request.incarnation, answer)
        if self.log is not None:
            waiting = self.filter.waiting_below(request.client)
            self._note(Settled(request.client, request.incarnation, request.sequence, answer, waiting))

    def _note(self, step: Step, value: V | None = None) -> None:
        """Something changes: replicas must do the same."""
        if self.log is not None:
            self.log.note(step, value)

    def _configure(self, event: ConfigurePart) -> list[Answer[V]]:
        request = event.request
        verdict = self._judge(request, event.after, 0)
        if verdict == "answered":
            return [Answer(request.client, self.filter.answer(request.client, request.sequence))]
        if verdict != "new":
            assert verdict != "waits"
            return [self._refuse(request, Refusal(verdict, TEXTS[verdict]))]
        blocks = [block for (key, _), block in self.blocks.items() if key == request.key]
        try:
            for block in blocks:
                _check_change(block, request)
            if not blocks:
                raise refusals.unknown_key(request.key, request.client)
        except Refusal as refusal:
            return [self._refuse(request, refusal)]
        for block in blocks:
            block.configure(request.changes, request.from_round)
        self._note(Configured(request.key, request.changes, request.from_round))
        self.filter.admit(request.client, request.incarnation, request.sequence)
        answer = Pushed(request.sequence, self.number, self.version)
        self._answer_push(request, answer)
        return [Answer(request.client, answer)]

    # --- pull ---

    def _pull(self, event: PullPart) -> list[Answer[V]]:
        request = event.request
        if not self.filter.is_current(request.client, request.incarnation):
            return [self._refuse(request, Refusal("incarnation", TEXTS["incarnation"]))]
        self.waiting_pulls[request.client, request.sequence] = event
        return self._progress([])

    def _attend(self, event: PullPart) -> tuple[Answer[V] | None, list[tuple[str, int]]]:
        """Answer a pull if its time has come; also the blocks that it lets go on, by saying how far its worker is."""
        request = event.request
        unseen = not self.filter.has_seen(request.client, request.incarnation, event.after)
        if unseen or request.decree > self.decree:
            return None, []
        try:
            blocks = [self._find_beside(piece, request.client) for piece in event.part.pieces]
            touched = self._come_by(event)
        except Refusal as refusal:
            return self._refuse(request, refusal), []
        if self.version < event.at_least or not all(block.may_start(request.round) for block in blocks):
            return None, touched
        try:
            values = tuple(self._value(piece, request) for piece in event.part.pieces)
        except Refusal as refusal:
            return self._refuse(request, refusal), touched
        progress = _progress_of(blocks, request.round)
        reply = Pulled(request.sequence, self.number, self.version, *progress, self._decree_of(request.round))
        return Answer(request.client, reply, values), touched

    def _decree_of(self, step: int) -> int:
        """The decree that says who is in a step that somebody begins: one that is awaited, if it may add somebody. What
        is proposed from now on is of later steps. All who begin it are told the same, whoever dies meanwhile."""
        if not step:
            return 0
        now = self.promised if self.ceiling is not None and self.ceiling <= step else self.decree
        if len(self.told) > REMEMBERED_ROUNDS:
            del self.told[next(iter(self.told))]
        return self.told.setdefault(step, now)

    def _come_by(self, event: PullPart) -> list[tuple[str, int]]:
        """A pull of a step says that its worker has pushed all it will for the rounds before; the blocks it frees."""
        request, touched = event.request, list[tuple[str, int]]()
        if request.round == 0:
            return touched
        names = [(piece.key, piece.block) for piece in event.part.pieces if key_of(piece.key)[1] is None]
        in_rounds = [name for name in names if self.blocks[name].spec.delay is not None]
        if in_rounds:
            self._membership(request)
        for name in in_rounds:
            block, round_ = self.blocks[name], request.round - 1
            if block.come_by_without_push(request.worker, round_):
                touched.append(name)
                if round_ > block.closed:
                    self._note(Came(*name, request.worker, round_))
        return touched

    # --- what all share ---

    def _forget(self, event: Forget) -> list[Answer[V]]:
        is_gone = event.absent.includes
        self.filter.forget(event.absent)
        pulls = self.waiting_pulls.items()
        self.waiting_pulls = {name: pull for name, pull in pulls if not is_gone(pull.request.incarnation)}
        return []

    def _take_decree(self, decree: Decree) -> list[Answer[V]]:
        if decree.number <= self.decree:
            return []
        self.decree = decree.number
        self.members = {member.worker: member for member in decree.members}
        if decree.number >= self.promised:
            self.ceiling = None
        for block in self.blocks.values():
            block.retain(self.members)
        return self._progress([name for name, block in self.blocks.items() if block.spec.delay is not None])

    def _end_empty(self, round_: int) -> list[Answer[V]]:
        """Nobody is in the rounds up to this one, and nobody was promised one of them: who comes begins after them."""
        if self.members or (self.ceiling is not None and self.ceiling <= round_):
            return []
        ended = []
        for name, block in self.blocks.items():
            if block.spec.delay is not None and block.closed < round_ and all(open_ > round_ for open_ in block.open):
                block.end(round_)
                self._note(RoundsClosed(*name, round_))
                ended.append(name)
        return self._progress(ended)

    def _progress(self, touched: list[tuple[str, int]]) -> list[Answer[V]]:
        """Close what can close, then answer who waited for it; a pull may let further rounds close."""
        answers: list[Answer[V]] = []
        while True:
            for name in touched:
                self._close_ready(name)
            answers += self._settle()
            touched = []
            for name, event in list(self.waiting_pulls.items()):
                answer, released = self._attend(event)
                touched += released
                if answer is not None:
                    del self.waiting_pulls[name]
                    answers.append(answer)
            if not touched:
                return answers

    def _close_ready(self, name: tuple[str, int]) -> None:
        cut = self.cut
        if cut is not None and cut.goes_beyond(name, self.blocks[name].frontier(self.members, self.ceiling)):
            self._close_below(name, cut.round + 1)
            cut.copy_before_it_goes_on(name)
        self._close_below(name, self.ceiling)

    def _close_below(self, name: tuple[str, int], ceiling: int | None) -> None:
        block = self.blocks[name]
        if self.log is not None:
            self.log.before_change()
        closing = block.close_ready(self.members, ceiling)
        self._count_updates(len(closing.rounds))
        for round_, combined, workers in closing.rounds:
            self._note(Updated(*name, round_, workers), combined)
        if closing.beyond:
            self._note(RoundsClosed(*name, block.closed))

    def _settle(self) -> list[Answer[V]]:
        """Acknowledge the pushes that are in the value now."""
        answers: list[Answer[V]] = []
        waiting: list[PushPart[V]] = []
        for event in self.waiting_pushes:
            request = event.request
            blocks = [self.blocks[piece.key, piece.block] for piece in event.part.pieces]
            if any(block.spec.delay is not None and block.closed < request.round for block in blocks):
                waiting.append(event)
                continue
            round_, staleness = _progress_of(blocks, request.round)
            pushed = Pushed(request.sequence, self.number, self.version, round_, staleness=staleness)
            self._answer_push(request, pushed)
            answers.append(Answer(request.client, pushed, self._values(event.part) if request.pull else ()))
        self.waiting_pushes = waiting
        return answers

    def _count_updates(self, updates: int) -> None:
        if updates:
            self.version = Version(self.version.epoch, self.version.sequence + updates)

    def _values(self, part: Part) -> tuple[V, ...]:
        return tuple(self._value(piece) for piece in part.pieces)

    def _value(self, piece: Piece, pull: Pull | None = None) -> V:
        """What is there; or what the pull of a worker is given, in the rounds of a key that is compressed."""
        block = self.blocks.get((piece.key, piece.block))
        if block is None:
            return self._beside(piece)
        published = block.state.published if pull is not None and pull.round else None
        if pull is not None and piece.encoded:
            if published is None or self._begins(pull) or not published.has_encoded(block.given(pull.round)):
                raise refusals.not_encoded(piece, pull.client)
            return published.encoded(block.given(pull.round))
        value = block.state.value() if pull is None or published is None else published.whole(block.given(pull.round))
        whole = piece.start == 0 and piece.count == block.elements
        return value if whole else self.arithmetic.part(value, piece.start, piece.count)

    def _beside(self, piece: Piece) -> V:
        """What is there, in rounds and compressed or not; or what the rule keeps beside it."""
        key, name = key_of(piece.key)
        state = self.blocks[key, piece.block].state
        value = state.beside()[name] if name else state.value()
        return self.arithmetic.part(value, piece.start, piece.count)

    def _begins(self, pull: Pull) -> bool:
        """Whether it is a worker's first step, or one before: until now it was given what was there, of whichever
        round, so nothing can be added to that."""
        member = self.members.get(pull.worker)
        return member is not None and pull.round <= member.from_round

    def _find(self, piece: Piece, client: str) -> Block[V]:
        block = self.blocks.get((piece.key, piece.block))
        if block is None:
            raise refusals.unknown_key(piece.key, client)
        if piece.start + piece.count > block.elements:
            raise refusals.beyond_block(piece, block.elements, client)
        return block

    def _find_beside(self, piece: Piece, client: str) -> Block[V]:
        """The block whose value is read, or what is beside it."""
        key, name = key_of(piece.key)
        block = self.blocks.get((key, piece.block))
        if name is None or (piece.key, piece.block) in self.blocks or block is None:
            return self._find(piece, client)
        value = block.state.beside().get(name) if name else block.state.value()
        if value is None or piece.encoded or piece.start + piece.count > self.arithmetic.count(value):
            raise refusals.unknown_key(piece.key, client)
        return block

    def _refuse(self, request: Init | Push | Pull | Configure, refusal: Refusal) -> Answer[V]:
        """Say no. A final no to a push or a change is remembered like any other answer."""
        answer = Refused(request.sequence, self.number, refusal.reason, refusal.text, self.version.epoch)
        if isinstance(request, Push | Configure) and refusal.reason in REMEMBERED:
            self.filter.admit(request.client, request.incarnation, request.sequence)
            self.filter.settle(request.client, request.incarnation, answer)
        return Answer(request.client, answer)


def _check_change(block: Block[V], request: Configure) -> None:
    """Could this block's rule be changed so?"""
    try:
        block.state.check(request.changes)
    except ConfigError as error:
        raise Refusal("rule", str(error)) from error
    if request.from_round and block.spec.delay is None:
        raise refusals.change_without_rounds(request.key)
    if 0 < request.from_round <= block.closed:
        raise refusals.change_too_late(block.closed, request)


def _progress_of(blocks: list[Block[V]], step: int) -> tuple[int, int]:
    """The last round that is closed on all of them, and how many before `step` are missing on one."""
    in_rounds = [block.seen(step) for block in blocks if block.spec.delay is not None]
    closed = min(in_rounds, default=0)
    return closed, max(0, step - 1 - closed) if in_rounds and step else 0
