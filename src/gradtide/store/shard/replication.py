"""A server's part in replication, for the shards it is primary of and for those it follows. Pure.

As primary it sends every entry of a shard's log to the replicas, again when they don't confirm it, or a snapshot to
who has another past; it tells the coordinator who has caught up and who lags. As replica it does what the primary of
this epoch says, and refuses whoever speaks of an earlier one. What is to be sent is left in `outbox` and `words`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gradtide.store.rules.arithmetic import Arithmetic
from gradtide.store.shard.image import replay, restore, snapshot
from gradtide.store.shard.log import Entry, Follower, Log
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_events import Answer
from gradtide.store.wire.layouts import ITEM_BYTES
from gradtide.store.wire.messages import (
    CaughtUp,
    Fenced,
    Lagging,
    Message,
    Replicate,
    Replicated,
    ServerMessage,
    Snapshot,
    Table,
    Version,
)

__all__ = ["Replication", "ReplicationOptions", "ToServer"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ToServer(Generic[V]):
    """Send a message and its values to another server."""

    name: str
    message: ServerMessage
    values: tuple[V, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """How patient a primary is, and how much it sends in the background."""

    resend_s: float = 0.5
    snapshot_s: float = 10.0  # of a snapshot, which waits behind others; a broken connection is noticed at once
    lagging_s: float = 1.5  # a required replica that is silent for so long is complained about
    transfer_bytes_per_s: float = 200e6  # snapshots that nobody waits for
    kept_bytes: int = 64 << 20  # entries that are kept for a replica that is not in sync yet
    kept_entries: int = 4096
    again: int = 64  # entries that are sent again at once
    close_entries: int = 64  # a replica that is no further behind is waited for, to be in sync at last


@dataclass(slots=True)
class Replication(Generic[V]):
    """The state of one server, beside its own shards."""

    name: str
    incarnation: int
    arithmetic: Arithmetic[V]
    options: ReplicationOptions = field(default_factory=ReplicationOptions)
    table: Table | None = None
    now_s: float = 0.0
    replicas: dict[int, Shard[V]] = field(default_factory=dict)  # those that others are primary of
    primaries: dict[int, str] = field(default_factory=dict)  # of the shards that this server follows
    in_sync: dict[int, frozenset[str]] = field(default_factory=dict)  # of its own shards
    joining: dict[int, frozenset[str]] = field(default_factory=dict)
    awaited: dict[str, frozenset[int]] = field(default_factory=dict)  # who is about to be in sync, with which shards
    confirmed_s: dict[str, float] = field(default_factory=dict)  # replica -> when it was last asked and confirmed
    outbox: list[ToServer[V]] = field(default_factory=list)
    words: list[Message] = field(default_factory=list)
    behind: bool = False  # somebody has spoken of a later epoch
    missed: set[tuple[str, int]] = field(default_factory=set)  # what was said then: by which server, of which shard
    answered: set[str] = field(default_factory=set)  # who has said something in this epoch
    same: frozenset[str] = frozenset()  # servers that are the processes they were in the table before this one
    _synced: set[int] = field(default_factory=set)  # of the replicas: those that share the primary's past
    _budget_bytes: float = 0.0
    _ticked_s: float = 0.0
    _repeat_at_s: float = 0.0

    @property
    def epoch(self) -> int:
        return self.table.epoch if self.table else 0

    # --- the table ---

    def take_table(self, table: Table, index: int | None, shards: dict[int, Shard[V]]) -> dict[int, Shard[V]]:
        """A new epoch: returns the shards that this server is primary of now; the promoted are among them."""
        self._drop_what_was_lost(table, shards)
        self.same = table.same_processes(self.table)
        if table.epoch != self.epoch:
            # Else a coordinator was started again: the past is the same, and so is the fence. And who was reported to
            # have caught up may be in sync any moment, so nothing is acknowledged without it.
            self._synced.clear()
            self.awaited.clear()
        self.table, self.behind = table, False
        names = [server.name for server in table.servers]
        named: dict[tuple[int, ...], frozenset[str]] = {}
        for held in {*table.backups, *table.joining}:
            named[held] = frozenset(names[i] for i in held)
        self.in_sync, self.joining, self.primaries = {}, {}, {}
        kept: dict[int, Shard[V]] = {}
        for number, owner in enumerate(table.owners):
            if owner == index:
                if number in shards:
                    kept[number] = shards.pop(number)
                elif number in self.replicas:
                    kept[number] = self.replicas.pop(number)
                    kept[number].take_over()
                if table.joining:
                    self.in_sync[number] = named[table.backups[number]]
                    if table.joining[number]:
                        self.joining[number] = named[table.joining[number]]
            elif table.joining and (index in table.backups[number] or index in table.joining[number]):
                self.primaries[number] = names[owner]
        self._retire(shards)
        self.answered.clear()
        self._ask_for_what_was_missed()
        return kept

    def _ask_for_what_was_missed(self) -> None:
        """The table came later to this server than to its primaries: they would say it again only in half a second."""
        for server, number in sorted(self.missed):
            if number < 0 or self.primaries.get(number) == server:
                self._say(server, Replicated(self.epoch, self.name, number, self._position(number), again=True))
        self.missed.clear()

    def _drop_what_was_lost(self, table: Table, shards: dict[int, Shard[V]]) -> None:
        """Shards that had to begin anew: whatever is left of them here counts no more."""
        known = self.table.lost if self.table else ()
        for number, epoch in enumerate(table.lost if table.lost != known else ()):
            if epoch > (known[number] if known else 0):
                shards.pop(number, None)
                self.replicas.pop(number, None)

    def _retire(self, shards: dict[int, Shard[V]]) -> None:
        """Shards that this server is no longer primary of go on as replicas, or not at all."""
        for number, shard in shards.items():
            shard.log = None
            shard.forget_what_waits()
            self.replicas[number] = shard
        self.replicas = {number: shard for number, shard in self.replicas.items() if number in self.primaries}

    def lead(self, shard: Shard[V]) -> list[Answer[V]]:
        """A shard of this server, in a new epoch or a new one; returns what no longer has to wait."""
        if self.table is None:
            return []
        awaited = (name for name, shards in self.awaited.items() if shard.number in shards)
        required = self.in_sync.get(shard.number, frozenset()).union(awaited)
        names = required | self.joining.get(shard.number, frozenset())
        if not self.table.replicas and not names:
            return self._lead_alone(shard)
        if shard.log is None:
            shard.log = self._begin_log(shard)
        shard.log.follow(self.epoch, names, required, self.same)
        for name, follower in shard.log.followers.items():
            if shard.position == Version() and not shard.log.entries:
                follower.acked = 0  # nothing has happened yet: whoever has something else will say so
            self._send_again(shard, shard.log, name, follower)
        return shard.log.advance()

    def _begin_log(self, shard: Shard[V]) -> Log[V]:
        """Without replicas there is a log only while a shard moves: what happened before has no place in it, and
        nobody must be taken to have it."""
        assert self.table is not None
        if not self.table.replicas and (shard.blocks or shard.filter.records):
            shard.position = Version(self.epoch, shard.position.sequence + 1)
        return Log(self.epoch, shard.position, self.arithmetic, lasting=self.table.replicas > 0)

    def _lead_alone(self, shard: Shard[V]) -> list[Answer[V]]:
        """Nobody follows, and nobody is to."""
        log, shard.log = shard.log, None
        if log is None:
            return []
        log.follow(self.epoch, (), frozenset())
        return log.advance()

    # --- as primary ---

    def publish(self, log: Log[V], number: int) -> None:
        """Send what is new to who can take it."""
        for entry in log.fresh:
            for name, follower in log.followers.items():
                if follower.streams:
                    self._send(name, number, entry)
                    if follower.silent_since_s is None:  # else an earlier entry may be lost, and must go again in time
                        follower.heard_s = follower.silent_since_s = self.now_s
        log.fresh.clear()

    def _send(self, name: str, number: int, entry: Entry[V]) -> None:
        word = Replicate(
            self.epoch, self.name, number, entry.previous, entry.position, entry.version, entry.steps, entry.slots,
            self.now_s,
        )  # fmt: skip
        self._say(name, word, entry.values)

    def _send_again(self, shard: Shard[V], log: Log[V], name: str, follower: Follower) -> None:
        """Whatever gets this follower further."""
        follower.heard_s = self.now_s
        tip = log.position
        if follower.acked is not None and follower.acked >= tip.sequence:
            return
        if follower.silent_since_s is None:
            follower.silent_since_s = self.now_s
        if follower.acked is not None:
            for entry in log.after(follower.acked)[: self.options.again]:
                self._send(name, shard.number, entry)
        elif follower.differs:
            self._transfer(shard, log, name, follower)
        else:
            self._say(name, Replicate(self.epoch, self.name, shard.number, tip, tip, shard.version, clock_s=self.now_s))

    def _transfer(self, shard: Shard[V], log: Log[V], name: str, follower: Follower) -> None:
        """A snapshot, if somebody waits for it or the rate allows it."""
        if self._budget_bytes <= 0 and name not in log.required:
            follower.heard_s = self.now_s - self.options.resend_s  # at the next tick
            return
        word, values = snapshot(shard, self.epoch, self.name)
        self._budget_bytes -= sum(slot.count * ITEM_BYTES[slot.dtype] for slot in word.slots)
        follower.basis = log.position.sequence
        self._say(name, word, values)

    def tick(self, now_s: float, shards: Iterable[Shard[V]]) -> None:
        """Time goes by: send again, complain, report."""
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s  # `now_s` of this object moves with each message
        most = self.options.transfer_bytes_per_s / 4
        self._budget_bytes = min(self._budget_bytes + passed_s * self.options.transfer_bytes_per_s, most)
        self.now_s = now_s
        if self.table is None or not self.table.joining:
            return
        if passed_s > self.options.resend_s:
            self._excuse_own_absence(passed_s, shards)
        for shard in shards:
            if shard.log is not None:
                self._attend(shard, shard.log)
        if now_s >= self._repeat_at_s:
            self._repeat_at_s = now_s + self.options.resend_s / 4
            self._complain(shards)
            self._report(shards)

    def _excuse_own_absence(self, absent_s: float, shards: Iterable[Shard[V]]) -> None:
        """Was it this server that was stopped or starved? Then what the replicas said may only be waiting to be read;
        one that is complained about is out of sync, and if this server died then, nobody could follow it."""
        for shard in shards:
            for follower in shard.log.followers.values() if shard.log is not None else ():
                if follower.silent_since_s is not None:
                    follower.silent_since_s = min(self.now_s, follower.silent_since_s + absent_s)

    def _attend(self, shard: Shard[V], log: Log[V]) -> None:
        for name, follower in log.followers.items():
            patience_s = self.options.resend_s if follower.basis is None else self.options.snapshot_s
            if follower.acked == log.position.sequence or self.now_s - follower.heard_s < patience_s:
                continue
            if follower.basis is not None:
                follower.basis, follower.differs = None, True  # the snapshot, or its answer, was lost
            if name not in log.required and follower.acked is not None and self._lags(log, follower.acked):
                log.restart(name)
            self._send_again(shard, log, name, follower)

    def _lags(self, log: Log[V], acked: int) -> bool:
        behind = log.position.sequence - acked
        return behind > self.options.kept_entries or log.kept_bytes > self.options.kept_bytes

    def _complain(self, shards: Iterable[Shard[V]]) -> None:
        """Who is required and silent holds everybody up: the coordinator must decide."""
        late: set[str] = set()
        for log in (shard.log for shard in shards if shard.log is not None):
            waited = {name: log.followers[name].silent_since_s for name in log.required}
            late |= {n for n, s in waited.items() if s is not None and self.now_s - s > self.options.lagging_s}
        self.words += [Lagging(self.name, self.incarnation, self.epoch, name) for name in sorted(late)]

    def _report(self, shards: Iterable[Shard[V]]) -> None:
        """Who is close behind is waited for from now on; when it has all that was acknowledged, it is reported."""
        logs = {shard.number: shard.log for shard in shards if shard.log is not None}
        for name in sorted(frozenset().union(*set(self.joining.values()))):
            if name not in self.answered:  # where nobody has touched a shard there is nothing else to be confirmed
                self._ask_for_a_word(name)
                continue
            wanted = [number for number, names in self.joining.items() if name in names]
            own = [logs[number] for number in wanted if number in logs]
            if name not in self.awaited:
                if not all(log.is_close(name, self.options.close_entries) for log in own):
                    continue
                self.awaited[name] = frozenset(wanted)
                for log in own:
                    log.require(name)
            if all(log.has_caught_up(name) for log in own):
                self.words.append(CaughtUp(self.name, self.incarnation, self.epoch, name, tuple(wanted)))

    def ask_whether_still_primary(self) -> None:
        """The coordinator is silent: as long as the replicas are at this epoch, nobody has taken over."""
        for name in sorted(self.peers_in_sync):
            self._ask_for_a_word(name)

    def _ask_for_a_word(self, name: str) -> None:
        self._say(name, Replicate(self.epoch, self.name, -1, Version(), Version(), Version(), clock_s=self.now_s))

    @property
    def peers_in_sync(self) -> frozenset[str]:
        """Who may be primary of one of this server's shards before it knows: also those it has reported."""
        return frozenset(self.awaited).union(*set(self.in_sync.values()))

    def peer_is_up(self, name: str, shards: Iterable[Shard[V]]) -> None:
        """A connection is there: whatever was said before may not have arrived."""
        for shard in shards:
            follower = shard.log.followers.get(name) if shard.log is not None else None
            if shard.log is not None and follower is not None:
                if follower.basis is not None:
                    follower.basis, follower.differs = None, True
                self._send_again(shard, shard.log, name, follower)
        for number in (number for number, primary in self.primaries.items() if primary == name):
            self._say(name, Replicated(self.epoch, self.name, number, self._position(number)))

    def _say(self, server: str, word: ServerMessage, values: tuple[V, ...] = ()) -> None:
        self.outbox.append(ToServer(server, word, values))

    def _position(self, number: int) -> Version:
        """Of a replica here, as far as there is one."""
        known = self.replicas.get(number)
        return known.position if known is not None else Version()

    # --- what other servers say ---

    def hear(
        self, message: ServerMessage, values: Sequence[V], shards: dict[int, Shard[V]], now_s: float
    ) -> list[Answer[V]]:
        """Returns what can be answered to clients now."""
        self.now_s = max(self.now_s, now_s)
        match message:
            case Replicate():
                self._follow(message, values)
            case Snapshot():
                self._take_snapshot(message, values)
            case Replicated():
                return self._confirmed(message, shards)
            case Fenced():
                self.behind = self.behind or message.epoch > self.epoch
        return []

    def _confirmed(self, message: Replicated, shards: dict[int, Shard[V]]) -> list[Answer[V]]:
        if message.epoch != self.epoch:
            return []
        self.answered.add(message.server)
        self.confirmed_s[message.server] = max(message.clock_s, self.confirmed_s.get(message.server, 0.0))
        shard = shards.get(message.shard)
        if shard is None or shard.log is None:
            return []
        log = shard.log
        log.confirm(message.server, message.position, self.now_s)
        follower = log.followers.get(message.server)
        if follower is not None and message.again and follower.basis is not None:
            follower.basis, follower.differs = None, True  # the snapshot came too early
        if follower is not None and (message.again or (follower.differs and not follower.streams)):
            self._send_again(shard, log, message.server, follower)
        return log.release()

    # --- as replica ---

    def _is_refused(self, message: Replicate | Snapshot) -> bool:
        """The fence: only the primary of this very epoch is listened to."""
        if message.epoch < self.epoch:
            self._say(message.server, Fenced(self.epoch, self.name))
        if message.epoch > self.epoch:
            self.behind = True
            self.missed.add((message.server, message.shard))
        return message.epoch != self.epoch

    def _follow(self, message: Replicate, values: Sequence[V]) -> None:
        if self._is_refused(message):
            return
        position = Version()
        if message.shard >= 0:
            if self.primaries.get(message.shard) != message.server:
                return
            position = self._replay(message, values)
        self._say(message.server, Replicated(self.epoch, self.name, message.shard, position, message.clock_s))

    def _replay(self, message: Replicate, values: Sequence[V]) -> Version:
        shard = self.replicas.get(message.shard)
        if shard is None:
            shard = self.replicas[message.shard] = Shard(message.shard, self.arithmetic)
        if message.steps and message.previous == shard.position:
            replay(shard, message, values)
        if message.position == shard.position:
            self._synced.add(message.shard)
        return shard.position

    def _take_snapshot(self, message: Snapshot, values: Sequence[V]) -> None:
        if self._is_refused(message) or self.primaries.get(message.shard) != message.server:
            return
        known = self.replicas.get(message.shard)
        older = known is not None and message.position.sequence <= known.position.sequence
        if not (message.shard in self._synced and older):  # one that comes late must not turn back what was confirmed
            self.replicas[message.shard] = restore(message, values, self.arithmetic)
            self._synced.add(message.shard)
        position = self._position(message.shard)
        self._say(message.server, Replicated(self.epoch, self.name, message.shard, position))
