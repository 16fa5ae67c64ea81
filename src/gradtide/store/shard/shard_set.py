"""The shards of one server: pure. It cuts requests into shards' events, holds the table's epoch, and knows layouts.

How a shell drives it:

    parts = shards.parts(message)          before the payload is read: which pieces follow, and how long each is
                                           (None: unknown layout; drain the payload, then handle() with no values)
    answers = shards.handle(message, values)     send each Answer to the connection that client has now
    words = shards.hear(message, now_s)          from the coordinator: Welcome, Table, Propose, Decree; tell it these
    answers = shards.hear_server(message, values, now_s)   from another server: Replicate, Replicated, Snapshot, Fenced
    words = shards.tick(now_s)                   at least every lease / 4
    sends = shards.take_outbox()                 after each of these: what other servers are to be sent

The values in an Answer are the shards' own memory: send or copy them before the next call.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gradtide.store.rules.arithmetic import Arithmetic
from gradtide.store.shard.inventory import list_keys
from gradtide.store.shard.lease import Lease
from gradtide.store.shard.refusals import TEXTS
from gradtide.store.shard.replication import Replication, ReplicationOptions, ToServer
from gradtide.store.shard.shard import Shard
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
    Absent,
    Beat,
    Configure,
    Decree,
    Gone,
    Init,
    Join,
    Keys,
    Leave,
    Listed,
    Message,
    Part,
    Promise,
    Propose,
    Pull,
    Push,
    Refused,
    Request,
    ServerMessage,
    Source,
    Table,
    Version,
    Welcome,
    layout_name,
)

__all__ = ["LAYOUTS_KEPT", "ShardSet"]

V = TypeVar("V")

LAYOUTS_KEPT = 1024


@dataclass(slots=True)
class ShardSet(Generic[V]):
    """All that a server knows, but for its sockets."""

    name: str
    incarnation: int
    address: str
    arithmetic: Arithmetic[V]
    expected: int = 0  # how many servers the first table should wait for
    table: Table | None = None
    decree: Decree | None = None
    proposal: Propose | None = None
    index: int | None = None  # of this server in the table
    owned: frozenset[int] = frozenset()
    shards: dict[int, Shard[V]] = field(default_factory=dict)  # those of the owned that anybody has touched
    layouts: OrderedDict[bytes, tuple[Part, ...]] = field(default_factory=OrderedDict)
    lease: Lease = field(default_factory=Lease)
    replicas: int = 0  # how many copies of each shard the store should have beside the primary
    options: ReplicationOptions = field(default_factory=ReplicationOptions)
    to_load: dict[int, Source] = field(default_factory=dict)  # shards that begin with a checkpoint and are not here yet
    begun: dict[int, int] = field(default_factory=dict)  # shard -> the epoch of the checkpoint that it began with here
    draining: bool = False  # this server wants to go, and waits until its shards are elsewhere
    dismissed: bool = False  # it may go: they are, or nobody is left to whom they could go
    alone_since_s: float | None = None
    refused_since_s: float | None = None
    gave_up: str = ""  # why the coordinator does not let this server in
    token: int = 0  # by which the coordinator knows it until it has an incarnation
    absent: Absent = field(default_factory=Absent)  # clients whose answers are gone
    lapsed: bool = False  # nobody has confirmed that this server is still primary: it must not answer
    replication: Replication[V] = field(init=False)

    def __post_init__(self) -> None:
        self.replication = Replication(self.name, self.incarnation, self.arithmetic, self.options)

    @property
    def is_replicated(self) -> bool:
        """Does a shard have followers, be it only until it has moved?"""
        return self.table is not None and bool(self.table.joining)

    @property
    def epoch(self) -> int:
        return self.table.epoch if self.table else 0

    @property
    def accepts_questions(self) -> bool:
        """Is it certain that this server holds what its table says? If the table means the process that had its name
        before, this one holds nothing of it."""
        return self.index is not None and not self.lapsed and not self.to_load

    # --- clients ---

    def parts(self, message: Request) -> tuple[Part, ...] | None:
        """The pieces that a request is about; None when it names a layout that is not known here."""
        if isinstance(message, Init):
            return message.parts
        if not isinstance(message, Push | Pull):
            return ()
        if message.parts:
            if layout_name(message.parts) != message.layout:
                return None
            self.layouts[message.layout] = message.parts
            if len(self.layouts) > LAYOUTS_KEPT:
                self.layouts.popitem(last=False)
        elif message.layout in self.layouts:
            self.layouts.move_to_end(message.layout)
        return self.layouts.get(message.layout)

    def handle(self, message: Request, values: Sequence[V] = ()) -> list[Answer[V]]:
        """Take a request and the values that came with it, one a piece; returns the answers."""
        parts = self.parts(message)
        if not self.accepts(message, parts or ()):
            refused = Refused(message.sequence, -1, "epoch", "the table of servers has changed", self.epoch)
            return [Answer(message.client, refused)]
        if parts is None:
            return [Answer(message.client, Refused(message.sequence, -1, "layout", "unknown layout", self.epoch))]
        match message:
            case Push() | Init():
                return self._deliver_values(message, parts, values)
            case Pull():
                return self._deliver_pull(message, parts)
            case Configure():
                return self._deliver_configure(message)
            case Keys():
                found = list_keys(self.shards.values(), message.prefix)
                return [Answer(message.client, Listed(message.sequence, found))]

    def accepts(self, message: Request, parts: tuple[Part, ...]) -> bool:
        """Is a request about this table's epoch, and about shards that are here?"""
        here = message.epoch == self.epoch and self.accepts_questions
        return here and all(part.shard in self.owned for part in parts)

    def deliver(self, message: Push | Init, index: int, part: Part, values: Sequence[V]) -> list[Answer[V]]:
        """One part of a request that was accepted: a shell hands parts over as they arrive, or `handle` does."""
        if isinstance(message, Push):
            event = PushPart(message, part, message.after[index] if message.after else 0, values)
            return self._tell(self._shard(part.shard), event)
        return self._tell(self._shard(part.shard), InitPart(message, part, values))

    def _tell(self, shard: Shard[V], event: ShardEvent[V]) -> list[Answer[V]]:
        """An event for a shard; what it changed goes to the replicas."""
        if self.absent.floor and not isinstance(event, Decree | Forget | RoundsEmpty):
            request = event.request
            if self.absent.includes(request.incarnation):
                refused = Refused(request.sequence, shard.number, "incarnation", TEXTS["incarnation"])
                return [Answer(request.client, refused)]
        answers = shard.handle(event)
        if shard.log is not None and shard.log.fresh:
            self.replication.publish(shard.log, shard.number)
        return answers

    def _shard(self, number: int) -> Shard[V]:
        """Shards are made when they are first touched: most servers hold few keys."""
        shard = self.shards.get(number)
        if shard is None:
            shard = self.shards[number] = self._new_shard(number)
        return shard

    def _deliver_values(self, message: Push | Init, parts: tuple[Part, ...], values: Sequence[V]) -> list[Answer[V]]:
        answers: list[Answer[V]] = []
        first = 0
        for i, part in enumerate(parts):
            own = values[first : first + len(part.pieces)]
            first += len(part.pieces)
            answers += self.deliver(message, i, part, own)
        return answers

    def _deliver_pull(self, message: Pull, parts: tuple[Part, ...]) -> list[Answer[V]]:
        answers: list[Answer[V]] = []
        for i, part in enumerate(parts):
            after = message.after[i] if message.after else 0
            at_least = message.at_least[i] if message.at_least else Version()
            answers += self._tell(self._shard(part.shard), PullPart(message, part, after, at_least))
        return answers

    def _deliver_configure(self, message: Configure) -> list[Answer[V]]:
        answers: list[Answer[V]] = []
        for i, number in enumerate(message.shards):
            if number in self.owned:
                after = message.after[i] if message.after else 0
                answers += self._tell(self._shard(number), ConfigurePart(message, after))
        return answers

    def end_empty_rounds(self, round_: int) -> list[Answer[V]]:
        """Nobody is in the rounds, and a checkpoint is to be of this one."""
        return [answer for shard in self.shards.values() for answer in self._tell(shard, RoundsEmpty(round_))]

    # --- coordinator ---

    def hear(self, message: Message, now_s: float) -> tuple[list[Message], list[Answer[V]]]:
        """What the coordinator said; returns what to tell it, and what to tell clients."""
        match message:
            case Welcome() if self._is_for_me(message):
                if message.accepted and not self.incarnation:
                    self.incarnation = self.replication.incarnation = message.incarnation
                self.lease.welcome(message, now_s)
                if now_s <= self.lease.leased_until_s:
                    self.lapsed = False  # at once, not with the next tick
                if self.draining and self.lease.refused:
                    self.dismissed = True  # another process has the name: nothing is left here that counts
            case _ if not self.incarnation:
                pass  # words that overtook the welcome: the first beat asks for them again
            case Table() if (message.term, message.epoch) > (
                (self.table.term, self.table.epoch) if self.table else (0, 0)
            ):
                return [self._beat(now_s)], self._take_table(message)
            case Propose() if self.table is not None and not self.to_load:  # else it is asked again
                return [self._promise(message)], []
            case Decree() if self.decree is None or message.number > self.decree.number:
                self.decree = message
                answers = [answer for shard in self.shards.values() for answer in self._tell(shard, message)]
                return [self._beat(now_s)], answers
            case Gone():
                self._forget(message.absent)
        return [], []

    def _is_for_me(self, welcome: Welcome) -> bool:
        if welcome.incarnation == self.incarnation:
            return True
        return not self.incarnation and welcome.token == self.token

    def _forget(self, absent: Absent) -> None:
        """What is known of clients that are gone goes too; should they say something, it is refused."""
        if absent.floor > self.absent.floor:
            self.absent = absent
            for shard in (*self.shards.values(), *self.replication.replicas.values()):
                shard.handle(Forget(absent))

    def hear_server(self, message: ServerMessage, values: Sequence[V], now_s: float) -> list[Answer[V]]:
        """What another server said; returns what to tell clients."""
        return self.replication.hear(message, values, self.shards, now_s)

    def peer_is_up(self, name: str) -> None:
        """There is a new connection to another server."""
        self.replication.peer_is_up(name, self.shards.values())

    def take_outbox(self) -> list[ToServer[V]]:
        """What other servers are to be sent; each is taken once."""
        sends, self.replication.outbox = self.replication.outbox, []
        return sends

    def drain(self) -> None:
        """Ask to be let go. Until this server is `dismissed` it does what it always did."""
        self.draining = True
        self.dismissed = self.dismissed or self.table is None

    def tick(self, now_s: float) -> list[Message]:
        """Time goes by: join, or beat; replicate, and look after the lease."""
        replication = self.replication
        replication.tick(now_s, self.shards.values())
        self._check_lease(now_s)
        self._check_whether_anybody_stays(now_s)
        words, replication.words = replication.words, []
        if self.draining and not self._is_leaving:
            words.append(Leave(self.name, self.incarnation))
        if replication.behind:
            replication.behind = False
            words.append(self._beat(now_s))
        self._check_whether_refused(now_s)
        if not self.lease.is_due(now_s):
            return words
        if not self.lease.welcomed:
            return [self._join()]
        return [*words, self._beat(now_s)]

    def _check_whether_refused(self, now_s: float) -> None:
        """Who has its name may be dead and not known to be yet; after two leases it is not."""
        lease = self.lease
        if not lease.refused:
            self.refused_since_s = None
        elif self.refused_since_s is None:
            self.refused_since_s = now_s
        elif now_s - self.refused_since_s > 2 * lease.lease_s:
            self.gave_up = lease.refused

    def _check_lease(self, now_s: float) -> None:
        """While the coordinator is silent a primary goes on as long as its replicas know of no other."""
        if not self.is_replicated or now_s <= self.lease.leased_until_s:
            self.lapsed = False
            return
        peers, limit_s = self.replication.peers_in_sync, now_s - self.lease.lease_s
        self.lapsed = any(self.replication.confirmed_s.get(peer, 0.0) < limit_s for peer in peers)
        self.replication.ask_whether_still_primary()

    def _join(self) -> Join:
        term = self.table.term if self.table else 0
        return Join(
            "server", self.name, self.incarnation, self.address,
            expected=self.expected, replicas=self.replicas, term=term, epoch=self.epoch, token=self.token,
        )  # fmt: skip

    def _beat(self, now_s: float) -> Beat:
        table, decree = self.table, self.decree
        known = decree.number if decree else 0
        return Beat(self.name, self.incarnation, table.term if table else 0, self.epoch, known, now_s)

    def _take_table(self, table: Table) -> list[Answer[V]]:
        """Shards that stay go on in the new epoch, those that were promoted here begin; returns what need not wait."""
        self.table = table
        self._forget(table.absent)
        index = next(
            (i for i, server in enumerate(table.servers) if self._is_me(server.name, server.incarnation)), None
        )
        self._note_place(table, index)
        self.owned = frozenset([number for number, owner in enumerate(table.owners) if owner == index])
        before = set(self.shards)
        self.shards = self.replication.take_table(table, index, self.shards)
        self._find_what_to_load(table, before)
        answers: list[Answer[V]] = []
        for number, shard in self.shards.items():
            shard.adopt_epoch(table.epoch)
            answers += self._prepare(shard, new=number not in before)
        return answers

    def _find_what_to_load(self, table: Table, before: set[int]) -> None:
        """Shards that began with a checkpoint, and of which nothing is here.

        Nobody has acknowledged anything without a replica that is in sync; so if such a one has nothing, all there ever
        was is the checkpoint.
        """
        wanted: dict[int, Source] = {}
        for number in self.owned if table.sources else ():
            source, shard = table.source_of(number), self.shards.get(number)
            if source is None or self.begun.get(number) == source.epoch:
                continue
            if shard is not None and (shard.blocks or shard.position != Version()):
                self.begun[number] = source.epoch
                continue
            wanted[number] = source
            self.shards.pop(number, None)
        self.to_load = wanted

    def install(self, shards: Iterable[Shard[V]], source: Source) -> list[Answer[V]]:
        """What a checkpoint has of the shards that are to be loaded from it; what it has not begins empty."""
        found = {shard.number: shard for shard in shards}
        answers: list[Answer[V]] = []
        for number in [number for number, wanted in self.to_load.items() if wanted == source]:
            del self.to_load[number]
            self.begun[number] = source.epoch
            if number in found:
                shard = self.shards[number] = found[number]
                shard.adopt_epoch(self.epoch)
                answers += self._prepare(shard, new=True)
        return answers

    def _note_place(self, table: Table, index: int | None) -> None:
        listed = any(server.name == self.name for server in table.servers)
        self.dismissed = self.dismissed or (self.index is not None and not listed)
        self.index = index if listed else self.index

    @property
    def others_stay(self) -> bool:
        """Is there another server to whom shards could go?"""
        table = self.table
        staying = set(range(len(table.servers))).difference(table.leaving, [self.index]) if table is not None else ()
        return bool(staying)

    def _check_whether_anybody_stays(self, now_s: float) -> None:
        """Who could only wait for a server that is not there goes after a lease: the whole store is ending."""
        if not self.draining or self.others_stay:
            self.alone_since_s = None
        elif self.alone_since_s is None:
            self.alone_since_s = now_s
        elif now_s - self.alone_since_s > self.lease.lease_s:
            self.dismissed = True

    @property
    def _is_leaving(self) -> bool:
        return self.table is not None and self.index in self.table.leaving

    def _is_me(self, name: str, incarnation: int) -> bool:
        return (name, incarnation) == (self.name, self.incarnation)

    def _new_shard(self, number: int) -> Shard[V]:
        shard = Shard(number, self.arithmetic, Version(self.epoch, 0))
        self._prepare(shard, new=True)
        return shard

    def _prepare(self, shard: Shard[V], *, new: bool) -> list[Answer[V]]:
        """Who follows it, who is in its rounds, and what was promised about them."""
        answers = self.replication.lead(shard)
        if not new:
            return answers
        shard.filter.forget(self.absent)  # it may come from a server that had not heard of it
        if self.table is not None:
            shard.await_decree(self.table.decree)
        if self.decree is not None:
            answers += self._tell(shard, self.decree)
        if self.proposal is not None:
            shard.promise(self.proposal)
        return answers

    def _promise(self, proposal: Propose) -> Promise:
        if self.proposal is None or proposal.number > self.proposal.number:
            self.proposal = proposal
        rounds = [shard.promise(proposal) for shard in self.shards.values()]
        return Promise(self.name, self.incarnation, proposal.number, max(rounds, default=1), self.epoch)
