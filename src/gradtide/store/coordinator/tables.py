"""The table of shards: how one follows the other as servers come, go, fall behind and catch up. Pure.

Which servers hold which shard is assignment.py's to say, which shards move to a newcomer shard_moves.py's.
"""

import dataclasses
from dataclasses import dataclass, field

import msgspec

from gradtide.store.coordinator.admission import Admission
from gradtide.store.coordinator.assignment import Assignment, Standing, assign_first, balance, reassign, without
from gradtide.store.coordinator.loss_policy import Recovery
from gradtide.store.coordinator.peers import Peer, Tell, tell_all
from gradtide.store.coordinator.round_members import RoundMembers
from gradtide.store.coordinator.shard_moves import spread
from gradtide.store.wire.messages import CaughtUp, Join, Lagging, ServerEntry, Table

__all__ = ["Tables"]


@dataclass(slots=True)
class Tables:
    """The present table. `peers`, `rounds` and `admission` are the coordinator's own."""

    peers: dict[str, Peer]
    rounds: RoundMembers
    admission: Admission
    lease_s: float
    term: int
    table: Table | None = None
    restored: int = 0  # the epoch that this term began with
    recovery: Recovery = field(default_factory=Recovery)
    ticked_s: float = 0.0
    inherited_until_s: float = 0.0  # until then somebody else may have given leases: nobody is replaced
    settled: tuple[int, float] = (0, 0.0)  # the epoch, and since when it has been looked at

    def restore(self, table: Table) -> None:
        """From the journal, in a new term."""
        self.table, self.restored = msgspec.structs.replace(table, term=self.term), table.epoch

    @property
    def awaits_servers(self) -> bool:
        """Started again, with servers of the journal that have neither been heard of nor been silent for a lease: one
        may know more than the journal, so nothing is decided yet. What an old one lets us decide, clients would take
        for what the right one says next. Nor while who led before may still give leases."""
        if self.ticked_s < self.inherited_until_s:
            return True
        servers = (peer for peer in self.peers.values() if peer.join.role == "server")
        return any(peer.alive and not peer.heard for peer in servers)

    def update(
        self,
        *,
        caught_up: frozenset[tuple[int, int]] = frozenset(),
        lagging: frozenset[tuple[int, int]] = frozenset(),
        goers: frozenset[str] | None = None,
    ) -> list[Tell]:
        """Deal the first table when the expected servers are there; later, follow who came and went.

        `goers`, by name, are to be let go; None: those who were to be.
        """
        if self.awaits_servers:
            return []  # it is looked at again when they are there
        servers = {peer.join.name: peer.join for peer in self.peers.values() if peer.join.role == "server"}
        if self.table is None:
            return self._deal(list(servers.values())) if servers else []
        old = self.table
        comers = [join for name, join in servers.items() if self._is_new(name)]
        entries = (*(_entry(servers[entry.name]) for entry in old.servers), *map(_entry, comers))
        names = self.leaving if goers is None else goers
        leaving = frozenset(i for i, entry in enumerate(entries) if entry.name in names)
        standing = dataclasses.replace(self._standing(entries), lagging=lagging, caught_up=caught_up, leaving=leaving)
        new = reassign(old, entries, standing, old.epoch + 1)
        same = (new.owners, new.backups, new.joining, new.lost) == (old.owners, old.backups, old.joining, old.lost)
        if entries == old.servers and same and leaving == frozenset(old.leaving) and not new.emptied(leaving):
            return []
        return self.replace(entries, new, leaving)

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
            absent=self.admission.absent,
        )  # fmt: skip
        return self._announce()

    def give_up_all(self, term: int, epoch: int) -> list[Tell]:
        """All shards begin anew, in an epoch and a term above these."""
        told: list[Tell] = []
        self.term = term
        if self.table is not None:
            table = self.table = msgspec.structs.replace(self.table, epoch=epoch)
            lost = Assignment(table.owners, table.backups, table.joining, (epoch + 1,) * len(table.owners))
            told = self.replace(table.servers, lost, frozenset(table.leaving))
        self.restored = max(epoch, self.table.epoch if self.table is not None else 0)
        return told

    def _is_new(self, name: str) -> bool:
        peer = self.peers[name]
        listed = any(entry.name == name for entry in self.servers)
        return peer.alive and not peer.dismissed and not listed

    @property
    def leaving(self) -> frozenset[str]:
        """The names of the servers that are to be let go. It is a process that leaves: one that was started again in
        its place has not been asked to."""
        table = self.table
        entries = [table.servers[i] for i in table.leaving] if table is not None else []
        return frozenset(e.name for e in entries if self.peers[e.name].join.incarnation == e.incarnation)

    def replace(self, entries: tuple[ServerEntry, ...], new: Assignment, leaving: frozenset[int]) -> list[Tell]:
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
            leaving=tuple(n for n, i in enumerate(staying) if i in leaving), absent=self.admission.absent,
        )  # fmt: skip
        return self._announce()

    def balance(self, now_s: float) -> list[Tell]:
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
        standing = dataclasses.replace(self._standing(table.servers), leaving=frozenset(table.leaving))
        new = balance(table, standing) or spread(table, standing)
        return self.replace(table.servers, new, standing.leaving) if new is not None else self.update()

    def _announce(self) -> list[Tell]:
        """The rounds go on as they were decreed; whoever was about to join asks the servers of this table again."""
        assert self.table is not None
        members = self.rounds.update(self.table)
        if self.rounds.decree is not None:
            self.table = msgspec.structs.replace(self.table, decree=self.rounds.decree.number)
        return tell_all(self.peers.values(), self.table) + members

    def _standing(self, entries: tuple[ServerEntry, ...]) -> Standing:
        """Of the servers of the next table, who lives, and who of the present table's is another process now."""
        listed = enumerate(self.servers)
        alive = frozenset(i for i, entry in enumerate(entries) if self.peers[entry.name].alive)
        replaced = (i for i, entry in listed if self.peers[entry.name].join.incarnation != entry.incarnation)
        silent = frozenset(i for i in alive if self.is_overdue(self.peers[entries[i].name]))
        return Standing(alive, frozenset(replaced), silent=silent)

    def is_overdue(self, peer: Peer) -> bool:
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

    def caught_up(self, message: CaughtUp) -> list[Tell]:
        found = self._from_primary(message)
        if found is None or self.table is None:
            return []
        owners = self.table.owners
        pairs = frozenset((shard, found[1]) for shard in message.shards if owners[shard] == found[0])
        return self.update(caught_up=pairs)

    def lagging(self, message: Lagging) -> list[Tell]:
        found = self._from_primary(message)
        return self.update(lagging=frozenset({found})) if found is not None else []

    @property
    def servers(self) -> tuple[ServerEntry, ...]:
        """Of the present table."""
        return self.table.servers if self.table else ()


def _entry(join: Join) -> ServerEntry:
    return ServerEntry(join.name, join.address, join.incarnation)
