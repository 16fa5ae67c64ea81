"""Who is alive, who holds what, who is in the rounds: the coordinator, pure.

How a shell drives it: every message of a peer goes to `hear(message, now_s)`, time to `tick(now_s)`; both return a list
of `Tell(name, message)` to be sent, in order, to the connection that peer has now. Everything that is told is a whole
state with a number (table: epoch; decree: number), so it may be lost, repeated or overtaken: a peer's next beat says
what it knows, and it is told what is newer.

`take_unwritten()` gives the state that must be on disk before anything of what was returned is told. A coordinator that
starts again gets it back by `restore`, and goes on with a higher term: nothing that a server says can replace it.

Who is in the rounds is round_members.py's to say, which servers hold which shard assignment.py's.
"""

from dataclasses import dataclass, field, replace

import msgspec

from gradtide.errors import StoreError
from gradtide.store.coordinator.assignment import Assignment, Standing, assign_first, balance, reassign, without
from gradtide.store.coordinator.loss_policy import Recovery
from gradtide.store.coordinator.peers import Peer, Tell, tell_all
from gradtide.store.coordinator.round_members import RoundMembers
from gradtide.store.coordinator.shard_moves import spread
from gradtide.store.wire.messages import (
    Absent,
    Beat,
    CaughtUp,
    Decree,
    Gone,
    Inspected,
    Join,
    Lagging,
    Leave,
    Message,
    PeerState,
    Promise,
    Resized,
    ServerEntry,
    Table,
    Welcome,
)

__all__ = ["Membership", "Record"]


# After so many leases without a word a client is forgotten; should it come back, it must start again.
FORGET_LEASES = 60
# How long a client may say nothing while its connection stands: an interpreter that compiles or imports is not dead.
WORKER_LEASE_S = 60.0
_NUMBERS = 1 << 20  # incarnations that are set aside at once, so that the journal need not be written for each


class Record(msgspec.Struct, frozen=True):
    """What a coordinator that starts again must know: the journal's content."""

    term: int
    number: int
    table: Table | None
    decree: Decree | None
    numbers: int = 0  # no incarnation above this one has been given
    absent: Absent = Absent()


@dataclass(slots=True)
class Membership:
    """The coordinator's state."""

    lease_s: float = 2.0
    term: int = 1
    written: Record | None = None  # what is on disk
    peers: dict[str, Peer] = field(default_factory=dict)
    table: Table | None = None
    ticked_s: float = 0.0
    settled: tuple[int, float] = (0, 0.0)  # the epoch, and since when it has been looked at
    recovery: Recovery = field(default_factory=Recovery)
    restored: int = 0  # the epoch that this term began with
    worker_lease_s: float = WORKER_LEASE_S
    accept_loss: bool = False  # go on with a journal that is not the last one
    numbers: int = 0  # the last incarnation that was given
    numbers_set_aside: int = _NUMBERS
    absent: Absent = field(default_factory=Absent)
    forget_from_s: float = 0.0  # when clients may next be forgotten: who was there must have been heard of again
    _gone: bool = False  # clients are gone, and the servers have not been told
    _deferred: bool = False  # somebody came or went before all servers were heard of
    _rounds: RoundMembers = field(init=False)

    def __post_init__(self) -> None:
        self._rounds = RoundMembers(self.peers, self.term)

    @property
    def epoch(self) -> int:
        return self.table.epoch if self.table is not None else 0

    @property
    def decree(self) -> Decree | None:
        """Who is in the rounds, as was last decreed."""
        return self._rounds.decree

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
                return self._rounds.promised(message, self.table)
            case CaughtUp():
                return self._caught_up(message)
            case Lagging():
                return self._lagging(message)
        return []

    def lost(self, name: str, incarnation: int) -> list[Tell]:
        """A connection was closed. A server's process has died: that is noticed at once, not when its lease runs out. A
        client may connect again, and has a server's lease for it."""
        peer = self.peers.get(name)
        if peer is None or peer.join.incarnation != incarnation or not peer.alive:
            return []
        if peer.join.role != "server":
            peer.connected = False
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
        if self._awaits_servers:
            return Resized(tuple(listed), (), "the coordinator has just been started; ask again in a moment"), []
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
        record = Record(self.term, self._rounds.number, self.table, self.decree, self.numbers_set_aside, self.absent)
        if record == self.written:
            return None
        self.written = record
        return record

    @classmethod
    def restore(cls, record: Record, now_s: float, lease_s: float = 2.0) -> "Membership":
        """Start again from the journal. Everybody in it has a lease's time to be heard of."""
        term = record.term + 1
        membership = cls(lease_s, term, record)
        membership._rounds = RoundMembers.restore(membership.peers, term, record.decree, record.number)
        membership.restored = record.table.epoch if record.table is not None else 0
        if record.table is not None:
            membership.table = msgspec.structs.replace(record.table, term=term)
            for entry in record.table.servers:
                join = Join("server", entry.name, entry.incarnation, entry.address, replicas=record.table.replicas)
                membership.peers[entry.name] = Peer(join, now_s, heard=False)
        for member in record.decree.members if record.decree else ():
            join = Join("worker", member.client, member.incarnation, worker=member.worker)
            membership.peers[member.client] = Peer(join, now_s, connected=False)
        known = (peer.join.incarnation for peer in membership.peers.values())
        membership.numbers = max([record.numbers, *known])
        membership.numbers_set_aside = membership.numbers + _NUMBERS
        membership.absent = record.absent
        membership.forget_from_s = now_s + FORGET_LEASES * lease_s
        return membership

    def tick(self, now_s: float) -> list[Tell]:
        """Time goes by: leases run out, and promises that are overdue are asked for again."""
        self._excuse_own_absence(now_s)
        late = [peer for peer in self.peers.values() if peer.alive and now_s - peer.heard_s > self._patience_s(peer)]
        for peer in late:
            peer.alive = False
        told = self._update_table() if any(peer.join.role == "server" for peer in late) else []
        told += self._update_rounds() if self._deferred or any(peer.join.role == "worker" for peer in late) else []
        if not self._awaits_servers:
            told += self._rounds.ask_again(self.table, now_s, self.lease_s / 4) + self._balance(now_s)
        return told + self._forget_the_lost(now_s)

    @property
    def _awaits_servers(self) -> bool:
        """Started again, with servers of the journal that have neither been heard of nor been silent for a lease: one
        may know more than the journal, so nothing is decided yet. What an old one lets us decide, clients would take
        for what the right one says next."""
        servers = (peer for peer in self.peers.values() if peer.join.role == "server")
        return any(peer.alive and not peer.heard for peer in servers)

    def _update_rounds(self) -> list[Tell]:
        self._deferred = self._awaits_servers
        return [] if self._deferred else self._rounds.update(self.table)

    def _patience_s(self, peer: Peer) -> float:
        """A server's lease is tied to its loop; a client's life is its connection."""
        is_server = peer.join.role == "server"
        return self.lease_s if is_server or not peer.connected else max(self.lease_s, self.worker_lease_s)

    def _excuse_own_absence(self, now_s: float) -> None:
        """Was it the coordinator itself that was stopped or starved? Then nobody else was late."""
        absent_s = now_s - self.ticked_s
        if self.ticked_s and absent_s > self.lease_s / 4:
            for peer in self.peers.values():
                peer.heard_s = min(now_s, peer.heard_s + absent_s)
        self.ticked_s = now_s

    def _forget_the_lost(self, now_s: float) -> list[Tell]:
        deadline_s = now_s - FORGET_LEASES * self.lease_s
        # Who hangs while its connection stands is not lost yet, however long it may do so: rounds wait for it.
        known = (p for p in self.peers.values() if p.dismissed or (p.join.role != "server" and not p.alive))
        for name in [peer.join.name for peer in known if peer.heard_s < deadline_s]:
            self._forget(name)
        if not self._gone or now_s < self.forget_from_s:
            return []
        self._gone, self.forget_from_s = False, now_s + self.lease_s
        clients = (peer.join for peer in self.peers.values() if peer.join.role != "server")
        self.absent = Absent(self.numbers + 1, tuple(sorted(join.incarnation for join in clients)))
        return [Tell(server.name, Gone(self.absent)) for server in self._servers()]

    def _forget(self, name: str) -> None:
        """A client is gone: so may soon be what the servers remember of it."""
        del self.peers[name]
        self._gone = True

    # --- peers ---

    def _join(self, join: Join, now_s: float) -> list[Tell]:
        given_up: list[Tell] = []
        if self._knows_more(join) and join.role == "server":
            given_up = self._lost_journal(join)
        refused = self._why_not(join)
        if refused:
            welcome = Welcome(join.name, join.incarnation, self.lease_s, False, refused, token=join.token)
            return [*given_up, Tell(join.name, welcome)]
        known = self.peers.get(join.name)
        join = self._numbered(join)
        same = known is not None and known.join.incarnation == join.incarnation
        again = same and known is not None and known.alive and known.heard
        self.peers[join.name] = Peer(join, now_s, dismissed=known is not None and same and known.dismissed)
        told = [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s, token=join.token))]
        if not again and join.role == "server":
            told += self._update_table()
        if not again and join.role == "worker":
            told += self._update_rounds()
        return given_up + told + self._catch_up(Beat(join.name, join.incarnation))

    def _why_not(self, join: Join) -> str:
        """Why somebody can't be who he says he is; nothing if he can."""
        known = self.peers.get(join.name)
        gone = join.incarnation > 0 and self.absent.includes(join.incarnation)
        if join.role != "server" and (gone or self._knows_more(join) or self._is_made_up(join.incarnation)):
            return f"{join.name} is not known here any more, or belongs to an earlier store; connect again"
        if known is not None and (known.join.role == "server") != (join.role == "server"):
            return f"{join.name} is the name of a {known.join.role} here; give this one a name of its own"
        if known is not None and known.join.incarnation > join.incarnation > 0:
            return f"{join.name} has been started again since; this one must stop"
        if known is not None and known.alive and join.role == "server" and not _is_same(known.join, join):
            where = f" at {known.join.address}" if known.join.address else ""
            return f"another {join.name}{where} is alive; give this one a name of its own"
        rival = self._rival(join)
        return f"worker {join.worker} is taken by {rival}, which is alive; choose another number" if rival else ""

    def _is_made_up(self, incarnation: int) -> bool:
        """Nobody can have been given it. All who come later get higher ones, and there must be some left."""
        return incarnation > self.numbers_set_aside + _NUMBERS

    def _numbered(self, join: Join) -> Join:
        """With an incarnation that nobody has had; the same for who asks again."""
        known = self.peers.get(join.name)
        if join.incarnation == 0 and known is not None and _is_same(known.join, join):
            return msgspec.structs.replace(join, incarnation=known.join.incarnation)
        if join.incarnation == 0:
            join = msgspec.structs.replace(join, incarnation=self.numbers + 1)
        self.numbers = max(self.numbers, join.incarnation)
        if self.numbers > self.numbers_set_aside:
            self.numbers_set_aside = self.numbers + _NUMBERS
        return join

    def _knows_more(self, peer: Join | Beat) -> bool:
        """Who was told more than we know was told it by a coordinator whose journal we have not. Of an earlier term
        than this one nobody can know more than what this one began with."""
        epoch = self.restored if peer.term < self.term else self.epoch
        decree = peer.decree if isinstance(peer, Beat) else 0  # of whichever term
        return peer.term > self.term or peer.epoch > epoch or decree > self._rounds.number

    def _lost_journal(self, server: Join | Beat) -> list[Tell]:
        """A server knows more than we do: the journal is an old one, or none."""
        if self.accept_loss:
            return self._give_up_all(server)
        raise StoreError(
            f"{server.name} is at term {server.term}, epoch {server.epoch} of this store, and the journal here ends at "
            f"term {self.term - 1}, epoch {self.restored}: it is an old one, or none; start the coordinator with "
            "the journal that it had last, or with --accept-loss: all shards begin anew, or with the last checkpoint"
        )

    def _give_up_all(self, server: Join | Beat) -> list[Tell]:
        """What is known here is not what was acknowledged: all shards begin anew, and all who use them are told."""
        self.term = self._rounds.term = max(self.term, server.term) + 1
        self._rounds.number = max(self._rounds.number, server.decree if isinstance(server, Beat) else 0)
        epoch = max(self.epoch, server.epoch)
        told: list[Tell] = []
        if self.table is not None:
            table = self.table = msgspec.structs.replace(self.table, epoch=epoch)
            lost = Assignment(table.owners, table.backups, table.joining, (epoch + 1,) * len(table.owners))
            told = self._replace_table(table.servers, lost, frozenset(table.leaving))
        self.restored = max(epoch, self.epoch)
        return told

    def _rival(self, join: Join) -> str | None:
        """Another process that is this worker and alive."""
        if join.role != "worker":
            return None
        others = (peer for name, peer in self.peers.items() if name != join.name and peer.alive)
        return next((peer.join.name for peer in others if peer.join.worker == join.worker), None)

    def _beat(self, beat: Beat, now_s: float) -> list[Tell]:
        peer = self.peers.get(beat.name)
        is_server = peer is not None and peer.join.role == "server" and peer.join.incarnation <= beat.incarnation
        given_up = self._lost_journal(beat) if is_server and self._knows_more(beat) else []
        if peer is None or peer.join.incarnation < beat.incarnation:
            return [*given_up, Tell(beat.name, Welcome(beat.name, beat.incarnation, self.lease_s, False))]
        if peer.join.incarnation > beat.incarnation:
            text = f"{beat.name} was started again; this one must stop"
            return [Tell(beat.name, Welcome(beat.name, beat.incarnation, self.lease_s, False, text))]
        if peer.join.role == "worker" and not peer.alive:  # struck off: it may join again
            return [Tell(beat.name, Welcome(beat.name, beat.incarnation, self.lease_s, False))]
        back = not (peer.alive and peer.heard) or self._is_overdue(peer)
        peer.heard_s, peer.alive, peer.heard, peer.connected = now_s, True, True, True
        welcome = Welcome(beat.name, beat.incarnation, self.lease_s, clock_s=beat.clock_s)
        told = self._update_table() if back and is_server else []
        return [*given_up, Tell(beat.name, welcome), *told, *self._catch_up(beat)]

    def _leave(self, leave: Leave) -> list[Tell]:
        peer = self.peers.get(leave.name)
        if peer is None or peer.join.incarnation != leave.incarnation:
            return []
        if peer.join.role == "server":
            return self._update_table(goers=self.leaving | {leave.name})
        if leave.until:
            return self._rounds.announce_leave(leave)
        peer.alive = False
        told = self._update_rounds() if peer.join.role == "worker" else []
        self._forget(leave.name)
        return told

    def _catch_up(self, beat: Beat) -> list[Tell]:
        told: list[Tell] = []
        if self.table is not None and (beat.term, beat.epoch) < (self.table.term, self.table.epoch):
            told.append(Tell(beat.name, self.table))
        if self.decree is not None and beat.decree < self.decree.number:
            told.append(Tell(beat.name, self.decree))
        return told

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
        if self._awaits_servers:
            return []  # it is looked at again when they are there
        servers = {peer.join.name: peer.join for peer in self.peers.values() if peer.join.role == "server"}
        if self.table is None:
            return self._deal(list(servers.values())) if servers else []
        old = self.table
        comers = [join for name, join in servers.items() if self._is_new(name)]
        entries = (*(_entry(servers[entry.name]) for entry in old.servers), *map(_entry, comers))
        names = self.leaving if goers is None else goers
        leaving = frozenset(i for i, entry in enumerate(entries) if entry.name in names)
        standing = replace(self._standing(entries), lagging=lagging, caught_up=caught_up, leaving=leaving)
        new = reassign(old, entries, standing, old.epoch + 1)
        same = (new.owners, new.backups, new.joining, new.lost) == (old.owners, old.backups, old.joining, old.lost)
        if entries == old.servers and same and leaving == frozenset(old.leaving) and not new.emptied(leaving):
            return []
        return self._replace_table(entries, new, leaving)

    def _deal(self, servers: list[Join]) -> list[Tell]:
        if len(servers) < max(join.expected for join in servers):
            return []
        entries = tuple(map(_entry, servers))
        replicas = max(join.replicas for join in servers)  # what is wanted: more servers may come
        first, epoch = assign_first(entries, replicas), self.restored + 1
        sources = self.recovery.first(epoch) or (self.recovery.after_loss(epoch) if epoch > 1 else ())
        lost = (epoch,) * len(first.owners) if sources or epoch > 1 else first.lost
        self.table = Table(
            self.term, epoch, entries, first.owners, replicas, first.backups, first.joining, lost, sources=sources,
            absent=self.absent,
        )  # fmt: skip
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

    def _replace_table(self, entries: tuple[ServerEntry, ...], new: Assignment, leaving: frozenset[int]) -> list[Tell]:
        """The next table; who has been emptied is no longer in it, which tells him that he may go."""
        assert self.table is not None
        gone = new.emptied(leaving)
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
            leaving=tuple(n for n, i in enumerate(staying) if i in leaving), absent=self.absent,
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
        standing = replace(self._standing(table.servers), leaving=frozenset(table.leaving))
        new = balance(table, standing) or spread(table, standing)
        return self._replace_table(table.servers, new, standing.leaving) if new is not None else self._update_table()

    def _announce(self) -> list[Tell]:
        """The rounds go on as they were decreed; whoever was about to join asks the servers of this table again."""
        assert self.table is not None
        members = self._rounds.update(self.table)
        if self.decree is not None:
            self.table = msgspec.structs.replace(self.table, decree=self.decree.number)
        return tell_all(self.peers.values(), self.table) + members

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

    def _servers(self) -> tuple[ServerEntry, ...]:
        return self.table.servers if self.table else ()


def _is_same(one: Join, other: Join) -> bool:
    """Are these words of the same process?"""
    return one.incarnation == other.incarnation or (other.incarnation == 0 and one.token == other.token > 0)


def _entry(join: Join) -> ServerEntry:
    return ServerEntry(join.name, join.address, join.incarnation)
