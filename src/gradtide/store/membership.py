"""Who is alive, who holds what, who is in the rounds: the coordinator, pure.

How a shell drives it: every message of a peer goes to `hear(message, now_s)`, time to `tick(now_s)`; both return a list
of `Tell(name, message)` to be sent, in order, to the connection that peer has now. Everything that is told is a whole
state with a number (table: epoch; decree: number), so it may be lost, repeated or overtaken: a peer's next beat says
what it knows, and it is told what is newer.

`take_unwritten()` gives the state that must be on disk before anything of what was returned is told. A coordinator that
starts again gets it back by `restore`, and goes on with a higher term: nothing that a server says can replace it.

A worker joins in two steps. **Propose**: every primary of the table names a round that it has not closed, and promises
not to close it before the next decree. **Decree**: the worker is in from the highest of these on; so no shard can have
closed its first round without it. Leaving needs no promise: nobody waits for who is no longer listed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gradtide.errors import StoreError
from gradtide.store.assignment import Assignment, Standing, assign_first, balance, reassign, without
from gradtide.store.messages import (
    Beat,
    CaughtUp,
    Decree,
    Gone,
    Inspected,
    Join,
    Lagging,
    Leave,
    Member,
    Message,
    PeerState,
    Promise,
    Propose,
    Resized,
    ServerEntry,
    Source,
    Table,
    Welcome,
)
from gradtide.store.moving import spread

__all__ = ["Membership", "Peer", "Policy", "Record", "Recovery", "Tell"]


# After so many leases without a word a client is forgotten; should it come back, it must start again.
FORGET_LEASES = 60


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a peer."""

    name: str
    message: Message


@dataclass(slots=True)
class Peer:
    """A process that has joined."""

    join: Join
    heard_s: float
    alive: bool = True
    heard: bool = True  # False: known from the journal only
    dismissed: bool = False  # a server whose shards are all elsewhere, and that may go


@dataclass(slots=True)
class Proposal:
    """A decree in the making: who wants in, and what the servers have promised."""

    number: int
    promises: dict[tuple[str, int], int] = field(default_factory=dict)  # (server, incarnation) -> round


class Record(msgspec.Struct, frozen=True):
    """What a coordinator that starts again must know: the journal's content."""

    term: int
    number: int
    table: Table | None
    decree: Decree | None


Policy = Literal["empty", "rewind", "continue"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What becomes of shards that are lost: they begin empty, or with the last checkpoint, alone or all together."""

    policy: Policy = "empty"
    last: Callable[[], tuple[str, int] | None] = lambda: None  # the last checkpoint's folder and round
    begin_with: tuple[str, int] | None = None  # a checkpoint for the whole store to begin with

    def first(self, epoch: int) -> tuple[Source, ...]:
        return (Source(epoch, *self.begin_with),) if self.begin_with is not None else ()

    def after_loss(self, epoch: int) -> tuple[Source, ...]:
        found = self.last() if self.policy != "empty" else None
        return (Source(epoch, *found, self.policy == "rewind"),) if found is not None else ()


@dataclass(slots=True)
class Membership:
    """The coordinator's state."""

    lease_s: float = 2.0
    term: int = 1
    written: Record | None = None  # what is on disk
    peers: dict[str, Peer] = field(default_factory=dict)
    table: Table | None = None
    decree: Decree | None = None
    proposal: Proposal | None = None
    number: int = 0  # of the last proposal or decree
    asked_s: float = 0.0  # when the servers were last asked for promises
    ticked_s: float = 0.0
    settled: tuple[int, float] = (0, 0.0)  # the epoch, and since when it has been looked at
    recovery: Recovery = field(default_factory=Recovery)

    def hear(self, message: Message, now_s: float) -> list[Tell]:
        """A peer said something."""
        match message:
            case Join():
                return self._join(message, now_s)
            case Beat():
                return self._beat(message, now_s)
            case Leave():
                return self._leave(message)
            case Promise():
                return self._promised(message)
            case CaughtUp():
                return self._caught_up(message)
            case Lagging():
                return self._lagging(message)
        return []

    def lost(self, name: str, incarnation: int) -> list[Tell]:
        """A server's connection was closed: a process that dies is noticed at once, not when its lease runs out."""
        peer = self.peers.get(name)
        if peer is None or peer.join.role != "server" or peer.join.incarnation != incarnation or not peer.alive:
            return []
        peer.alive = False
        return self._update_table()

    def describe(self, now_s: float) -> Inspected:
        """For who looks from outside."""
        joins = [peer.join for peer in self.peers.values()]
        return Inspected(
            self.term, self.lease_s,
            tuple(
                PeerState(peer.join.role, name, peer.alive, now_s - peer.heard_s, peer.join.worker)
                for name, peer in sorted(self.peers.items())
            ),
            self.table, self.decree, max((join.expected for join in joins if join.role == "server"), default=0),
        )  # fmt: skip

    def resize(self, servers: int) -> tuple[Resized, list[Tell]]:
        """Somebody wants so many servers: too many are let go, the dead and the last first; too few stay."""
        listed = [entry.name for entry in self._servers()]
        least = self.table.replicas + 1 if self.table is not None else 1
        if self.table is None or servers < least:
            text = "the store has not begun; wait for its servers" if not listed else (
                f"{servers} servers are too few: each of the {least} copies is on a server of its own"
            )  # fmt: skip
            return Resized(tuple(listed), (), text), []
        worst_last = sorted(listed, key=lambda name: (not self.peers[name].alive, name in self.leaving))
        staying, going = worst_last[:servers], worst_last[servers:]
        return Resized(tuple(staying), tuple(going)), self._update_table(goers=frozenset(going))

    # --- the journal ---

    def take_unwritten(self) -> Record | None:
        """The state, if it is not what is on disk: to be written before anybody is told."""
        record = Record(self.term, self.number, self.table, self.decree)
        if record == self.written:
            return None
        self.written = record
        return record

    @classmethod
    def restore(cls, record: Record, now_s: float, lease_s: float = 2.0) -> "Membership":
        """Start again from the journal. Everybody in it has a lease's time to be heard of."""
        term = record.term + 1
        membership = cls(lease_s, term, record, number=record.number, decree=record.decree)
        if record.table is not None:
            membership.table = msgspec.structs.replace(record.table, term=term)
            for entry in record.table.servers:
                join = Join("server", entry.name, entry.incarnation, entry.address, replicas=record.table.replicas)
                membership.peers[entry.name] = Peer(join, now_s, heard=False)
        for member in record.decree.members if record.decree else ():
            join = Join("worker", member.client, member.incarnation, worker=member.worker)
            membership.peers[member.client] = Peer(join, now_s)
        return membership

    def tick(self, now_s: float) -> list[Tell]:
        """Time goes by: leases run out, and promises that are overdue are asked for again."""
        self._excuse_own_absence(now_s)
        late = [peer for peer in self.peers.values() if peer.alive and now_s - peer.heard_s > self.lease_s]
        for peer in late:
            peer.alive = False
        told = self._update_table() if any(peer.join.role == "server" for peer in late) else []
        told += self._update_members() if any(peer.join.role == "worker" for peer in late) else []
        if self.proposal is not None and now_s - self.asked_s > self.lease_s / 4:
            self.asked_s = now_s
            told += self._ask()
        return told + self._balance(now_s) + self._forget_the_lost(now_s)

    def _excuse_own_absence(self, now_s: float) -> None:
        """Was it the coordinator itself that was stopped or starved? Then nobody else was late."""
        absent_s = now_s - self.ticked_s
        if self.ticked_s and absent_s > self.lease_s / 4:
            for peer in self.peers.values():
                peer.heard_s = min(now_s, peer.heard_s + absent_s)
        self.ticked_s = now_s

    def _forget_the_lost(self, now_s: float) -> list[Tell]:
        deadline_s = now_s - FORGET_LEASES * self.lease_s
        known = (peer for peer in self.peers.values() if peer.join.role != "server" or peer.dismissed)
        lost = [peer.join for peer in known if peer.heard_s < deadline_s]
        return [tell for join in lost for tell in self._forget(join)]

    def _forget(self, join: Join) -> list[Tell]:
        """A client is gone: so may be what the servers remember of it."""
        del self.peers[join.name]
        return [Tell(server.name, Gone(join.name, join.incarnation)) for server in self._servers()]

    # --- peers ---

    def _join(self, join: Join, now_s: float) -> list[Tell]:
        self._check_journal(join)
        known = self.peers.get(join.name)
        if known is not None and known.join.incarnation > join.incarnation:
            text = f"{join.name} has been started again since; this one must stop"
            return [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s, False, text))]
        rival = self._rival(join)
        if rival is not None:
            text = f"worker {join.worker} is taken by {rival}, which is alive; choose another number"
            return [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s, False, text))]
        again = known is not None and known.join.incarnation == join.incarnation and known.alive and known.heard
        same = known is not None and known.join.incarnation == join.incarnation
        self.peers[join.name] = Peer(join, now_s, dismissed=known is not None and same and known.dismissed)
        told = [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s))]
        if not again and join.role == "server":
            told += self._update_table()
        if not again and join.role == "worker":
            told += self._update_members()
        return told + self._catch_up(Beat(join.name, join.incarnation))

    def _check_journal(self, join: Join) -> None:
        """Who is told of a later table than ours has been told by a coordinator whose journal we have not."""
        known = (self.table.term, self.table.epoch) if self.table else (0, 0)
        if (join.term, join.epoch) > known:
            raise StoreError(
                f"{join.name} is at term {join.term}, epoch {join.epoch} of this store, and the journal here ends at "
                f"term {known[0]}, epoch {known[1]}; start the coordinator with the journal it had, or the store anew"
            )

    def _rival(self, join: Join) -> str | None:
        """Another process that is this worker and alive."""
        if join.role != "worker":
            return None
        others = (peer for name, peer in self.peers.items() if name != join.name and peer.alive)
        return next((peer.join.name for peer in others if peer.join.worker == join.worker), None)

    def _beat(self, beat: Beat, now_s: float) -> list[Tell]:
        peer = self.peers.get(beat.name)
        if peer is None or peer.join.incarnation < beat.incarnation:
            return [Tell(beat.name, Welcome(beat.name, beat.incarnation, self.lease_s, False))]
        if peer.join.incarnation > beat.incarnation or (peer.join.role == "worker" and not peer.alive):
            text = f"{beat.name} was not heard of for {self.lease_s:g} s, or was started again: join again"
            return [Tell(beat.name, Welcome(beat.name, beat.incarnation, self.lease_s, False, text))]
        back = not (peer.alive and peer.heard) or self._is_overdue(peer)
        peer.heard_s, peer.alive, peer.heard = now_s, True, True
        welcome = Welcome(beat.name, beat.incarnation, self.lease_s, clock_s=beat.clock_s)
        told = self._update_table() if back and peer.join.role == "server" else []
        return [Tell(beat.name, welcome), *told, *self._catch_up(beat)]

    def _leave(self, leave: Leave) -> list[Tell]:
        peer = self.peers.get(leave.name)
        if peer is None or peer.join.incarnation != leave.incarnation:
            return []
        if peer.join.role == "server":
            return self._update_table(goers=self.leaving | {leave.name})
        if leave.until:
            return self._announce_leave(leave)
        peer.alive = False
        told = self._update_members() if peer.join.role == "worker" else []
        return told + self._forget(peer.join)

    def _announce_leave(self, leave: Leave) -> list[Tell]:
        """A worker will go before a round: all are told, and it stays until then."""
        members = self.decree.members if self.decree is not None else ()
        changed = tuple(
            msgspec.structs.replace(member, until=leave.until)
            if member.client == leave.name and not member.until
            else member
            for member in members
        )
        return self._proclaim(changed) if changed != members else []

    def _catch_up(self, beat: Beat) -> list[Tell]:
        told: list[Tell] = []
        if self.table is not None and (beat.term, beat.epoch) < (self.table.term, self.table.epoch):
            told.append(Tell(beat.name, self.table))
        if self.decree is not None and beat.decree < self.decree.number:
            told.append(Tell(beat.name, self.decree))
        return told

    def _tell_all(self, message: Message) -> list[Tell]:
        """Servers first: a worker that knows a decree finds that its shards do too, or soon will."""
        alive = [peer.join for peer in self.peers.values() if peer.alive]
        return [Tell(join.name, message) for join in sorted(alive, key=lambda join: join.role != "server")]

    # --- the table ---

    def _update_table(
        self,
        *,
        caught_up: frozenset[tuple[int, int]] = frozenset(),
        lagging: frozenset[tuple[int, int]] = frozenset(),
        goers: frozenset[str] | None = None,
    ) -> list[Tell]:
        """Deal the first table when the expected servers are there; later, follow who came and went.

        `goers`, by name, are to be let go; None: those who were to be.
        """
        servers = {peer.join.name: peer.join for peer in self.peers.values() if peer.join.role == "server"}
        if self.table is None:
            return self._deal(list(servers.values())) if servers else []
        old = self.table
        comers = [join for name, join in servers.items() if self._is_new(name)]
        entries = (*(_entry(servers[entry.name]) for entry in old.servers), *map(_entry, comers))
        names = self.leaving if goers is None else goers
        leaving = frozenset(i for i, entry in enumerate(entries) if entry.name in names)
        known = self._standing(entries)
        standing = Standing(known.alive, known.replaced, lagging, caught_up, leaving, known.silent)
        new = reassign(old, entries, standing, old.epoch + 1)
        same = (new.owners, new.backups, new.joining, new.lost) == (old.owners, old.backups, old.joining, old.lost)
        if entries == old.servers and same and leaving == frozenset(old.leaving) and not self._gone(new, leaving):
            return []
        return self._replace_table(entries, new, leaving)

    def _deal(self, servers: list[Join]) -> list[Tell]:
        if len(servers) < max(join.expected for join in servers):
            return []
        entries = tuple(map(_entry, servers))
        replicas = min(max(join.replicas for join in servers), len(servers) - 1)
        first = assign_first(entries, replicas)
        sources = self.recovery.first(1)
        lost = (1,) * len(first.owners) if sources else first.lost
        self.table = Table(
            self.term, 1, entries, first.owners, replicas, first.backups, first.joining, lost, sources=sources
        )
        return self._announce()

    def _is_new(self, name: str) -> bool:
        peer = self.peers[name]
        listed = any(entry.name == name for entry in self._servers())
        return peer.alive and not peer.dismissed and not listed

    @property
    def leaving(self) -> frozenset[str]:
        """The names of the servers that are to be let go. It is a process that leaves: one that was started again in
        its place has not been asked to."""
        table = self.table
        entries = [table.servers[i] for i in table.leaving] if table is not None else []
        return frozenset(e.name for e in entries if self.peers[e.name].join.incarnation == e.incarnation)

    @staticmethod
    def _gone(new: Assignment, leaving: frozenset[int]) -> frozenset[int]:
        """Of those who are leaving, who holds nothing any more."""
        if not leaving:
            return leaving
        return leaving.difference(new.owners, *new.backups, *new.joining)

    def _replace_table(self, entries: tuple[ServerEntry, ...], new: Assignment, leaving: frozenset[int]) -> list[Tell]:
        """The next table; who has been emptied is no longer in it, which tells him that he may go."""
        assert self.table is not None
        gone = self._gone(new, leaving)
        for i in gone:
            self.peers[entries[i].name].dismissed = True
        new = without(new, gone, len(entries)) if gone else new
        staying = [i for i in range(len(entries)) if i not in gone]
        epoch, sources, lost = self.table.epoch + 1, self.table.sources, new.lost
        if epoch in lost:
            sources += self.recovery.after_loss(epoch)
            if any(source.epoch == epoch and source.rewind for source in sources):
                lost = (epoch,) * len(new.owners)
        self.table = msgspec.structs.replace(
            self.table, term=self.term, epoch=epoch, servers=tuple(entries[i] for i in staying), owners=new.owners,
            backups=new.backups, joining=new.joining, lost=lost, sources=sources,
            leaving=tuple(n for n, i in enumerate(staying) if i in leaving),
        )  # fmt: skip
        return self._announce()

    def _balance(self, now_s: float) -> list[Tell]:
        """When nothing has changed for a while: share out the primaries again, or what all hold, and try anew whom
        nobody could reach."""
        table = self.table
        if table is None:
            return []
        if table.epoch != self.settled[0]:
            self.settled = (table.epoch, now_s)
        if now_s - self.settled[1] < self.lease_s / 4:
            return []
        self.settled = (table.epoch, now_s)
        known = self._standing(table.servers)
        standing = Standing(known.alive, known.replaced, leaving=frozenset(table.leaving), silent=known.silent)
        new = balance(table, standing) or spread(table, standing)
        return self._replace_table(table.servers, new, standing.leaving) if new is not None else self._update_table()

    def _announce(self) -> list[Tell]:
        """The rounds go on as they were decreed; whoever was about to join asks the servers of this table again."""
        assert self.table is not None
        members = self._update_members()
        if self.decree is not None:
            self.table = msgspec.structs.replace(self.table, decree=self.decree.number)
        return self._tell_all(self.table) + members

    def _standing(self, entries: tuple[ServerEntry, ...]) -> Standing:
        """Of the servers of the next table, who lives, and who of the present table's is another process now."""
        listed = enumerate(self._servers())
        alive = frozenset(i for i, entry in enumerate(entries) if self.peers[entry.name].alive)
        replaced = (i for i, entry in listed if self.peers[entry.name].join.incarnation != entry.incarnation)
        silent = frozenset(i for i in alive if self._is_overdue(self.peers[entries[i].name]))
        return Standing(alive, frozenset(replaced), silent=silent)

    def _is_overdue(self, peer: Peer) -> bool:
        """Two beats of a lease's four are missing."""
        return self.ticked_s - peer.heard_s > self.lease_s / 2

    def _from_primary(self, message: CaughtUp | Lagging) -> tuple[int, int] | None:
        """Which servers of the table this is about; None when it speaks of, or from, an earlier time."""
        table = self.table
        if table is None or message.epoch != table.epoch:
            return None
        index = {entry.name: i for i, entry in enumerate(table.servers)}
        primary, replica = index.get(message.server), index.get(message.replica)
        if primary is None or replica is None or table.servers[primary].incarnation != message.incarnation:
            return None
        return primary, replica

    def _caught_up(self, message: CaughtUp) -> list[Tell]:
        found = self._from_primary(message)
        if found is None or self.table is None:
            return []
        owners = self.table.owners
        pairs = frozenset((shard, found[1]) for shard in message.shards if owners[shard] == found[0])
        return self._update_table(caught_up=pairs)

    def _lagging(self, message: Lagging) -> list[Tell]:
        found = self._from_primary(message)
        return self._update_table(lagging=frozenset({found})) if found is not None else []

    # --- the rounds ---

    def _update_members(self) -> list[Tell]:
        """Somebody came or went: take the goers out at once, and ask from which round the comers can be in."""
        members = self.decree.members if self.decree else ()
        staying = tuple(member for member in members if self._still_in(member))
        told: list[Tell] = []
        if staying != members or self.proposal is not None:  # a dropped proposal must free those who promised
            self.proposal = None
            told += self._proclaim(staying)
        if self._comers(staying) and self.table is not None:
            self.number += 1
            self.proposal = Proposal(self.number)
            told += self._ask()
        return told

    def _still_in(self, member: Member) -> bool:
        peer = self.peers.get(member.client)
        return peer is not None and peer.alive and peer.join.incarnation == member.incarnation

    def _comers(self, members: tuple[Member, ...]) -> list[Join]:
        """The living workers that are not in; none while the first round still waits for the expected number."""
        inside = {member.client for member in members}
        workers = [peer.join for peer in self.peers.values() if peer.join.role == "worker" and peer.alive]
        if self.decree is None and len(workers) < max((join.expected for join in workers), default=0):
            return []
        return [join for join in workers if join.name not in inside]

    def _ask(self) -> list[Tell]:
        assert self.proposal is not None
        return [
            Tell(server.name, Propose(self.term, self.proposal.number))
            for server in self._primaries()
            if (server.name, server.incarnation) not in self.proposal.promises
        ]

    def _promised(self, promise: Promise) -> list[Tell]:
        proposal = self.proposal
        if proposal is None or promise.number != proposal.number or promise.epoch != (self.table or promise).epoch:
            return []
        proposal.promises[promise.server, promise.incarnation] = promise.round
        wanted = [(server.name, server.incarnation) for server in self._primaries()]
        if any(server not in proposal.promises for server in wanted):
            return []
        first = max(proposal.promises[server] for server in wanted)
        self.proposal = None
        members = self.decree.members if self.decree else ()
        new = (Member(join.worker, first, join.name, join.incarnation) for join in self._comers(members))
        return self._proclaim(tuple(sorted([*members, *new], key=lambda member: member.worker)))

    def _proclaim(self, members: tuple[Member, ...]) -> list[Tell]:
        self.number += 1
        self.decree = Decree(self.term, self.number, members)
        return self._tell_all(self.decree)

    def _primaries(self) -> list[ServerEntry]:
        """The servers that close rounds."""
        return [self.table.servers[i] for i in sorted(set(self.table.owners))] if self.table else []

    def _servers(self) -> tuple[ServerEntry, ...]:
        return self.table.servers if self.table else ()


def _entry(join: Join) -> ServerEntry:
    return ServerEntry(join.name, join.address, join.incarnation)
