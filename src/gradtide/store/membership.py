"""Who is alive, who holds what, who is in the rounds: the coordinator, pure.

How a shell drives it: every message of a peer goes to `hear(message, now_s)`, time to `tick(now_s)`; both return a list
of `Tell(name, message)` to be sent, in order, to the connection that peer has now. Everything that is told is a whole
state with a number (table: epoch; decree: number), so it may be lost, repeated or overtaken: a peer's next beat says
what it knows, and it is told what is newer. (A journal will be written first: the state is `epoch`, `table`, `decree`.)

A worker joins in two steps. **Propose**: every server of the table names a round that it has not closed, and promises
not to close it before the next decree. **Decree**: the worker is in from the highest of these on; so no shard can have
closed its first round without it. Leaving needs no promise: nobody waits for who is no longer listed.
"""

from dataclasses import dataclass, field

from gradtide.store.messages import (
    Beat,
    Decree,
    Gone,
    Join,
    Leave,
    Member,
    Message,
    Promise,
    Propose,
    ServerEntry,
    Table,
    Welcome,
)
from gradtide.store.placement import deal

__all__ = ["Membership", "Peer", "Tell"]


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


@dataclass(slots=True)
class Proposal:
    """A decree in the making: who wants in, and what the servers have promised."""

    number: int
    promises: dict[tuple[str, int], int] = field(default_factory=dict)  # (server, incarnation) -> round


@dataclass(slots=True)
class Membership:
    """The coordinator's state."""

    lease_s: float = 2.0
    term: int = 1
    peers: dict[str, Peer] = field(default_factory=dict)
    table: Table | None = None
    decree: Decree | None = None
    proposal: Proposal | None = None
    number: int = 0  # of the last proposal or decree
    asked_s: float = 0.0  # when the servers were last asked for promises

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
        return []

    def tick(self, now_s: float) -> list[Tell]:
        """Time goes by: leases run out, and promises that are overdue are asked for again."""
        late = [peer for peer in self.peers.values() if peer.alive and now_s - peer.heard_s > self.lease_s]
        for peer in late:
            peer.alive = False
        told = self._update_members() if any(peer.join.role == "worker" for peer in late) else []
        if self.proposal is not None and now_s - self.asked_s > self.lease_s / 4:
            self.asked_s = now_s
            told += self._ask()
        return told + self._forget_the_lost(now_s)

    def _forget_the_lost(self, now_s: float) -> list[Tell]:
        deadline_s = now_s - FORGET_LEASES * self.lease_s
        lost = [p.join for p in self.peers.values() if p.join.role != "server" and p.heard_s < deadline_s]
        return [tell for join in lost for tell in self._forget(join)]

    def _forget(self, join: Join) -> list[Tell]:
        """A client is gone: so may be what the servers remember of it."""
        del self.peers[join.name]
        return [Tell(server.name, Gone(join.name, join.incarnation)) for server in self._servers()]

    # --- peers ---

    def _join(self, join: Join, now_s: float) -> list[Tell]:
        known = self.peers.get(join.name)
        if known is not None and known.join.incarnation > join.incarnation:
            text = f"{join.name} has been started again since; this one must stop"
            return [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s, False, text))]
        rival = self._rival(join)
        if rival is not None:
            text = f"worker {join.worker} is taken by {rival}, which is alive; choose another number"
            return [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s, False, text))]
        again = known is not None and known.join == join and known.alive
        self.peers[join.name] = Peer(join, now_s)
        told = [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s))]
        if not again and join.role == "server":
            told += self._update_table()
        if not again and join.role == "worker":
            told += self._update_members()
        return told + self._catch_up(Beat(join.name, join.incarnation))

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
        peer.heard_s, peer.alive = now_s, True
        return [Tell(beat.name, Welcome(beat.name, beat.incarnation, self.lease_s)), *self._catch_up(beat)]

    def _leave(self, leave: Leave) -> list[Tell]:
        peer = self.peers.get(leave.name)
        if peer is None or peer.join.incarnation != leave.incarnation:
            return []
        peer.alive = False
        if peer.join.role == "server":
            return []
        told = self._update_members() if peer.join.role == "worker" else []
        return told + self._forget(peer.join)

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

    def _update_table(self) -> list[Tell]:
        """Deal the first table when the expected servers are there; later, note a server that came back."""
        servers = [peer.join for peer in self.peers.values() if peer.join.role == "server"]
        if self.table is None:
            if len(servers) < max(join.expected for join in servers):
                return []
            entries = tuple(ServerEntry(join.name, join.address, join.incarnation) for join in servers)
            self.table = Table(self.term, 1, entries, deal(len(entries)))
        else:
            by_name = {join.name: join for join in servers}
            entries = tuple(_entry(by_name[entry.name]) for entry in self.table.servers)
            if entries == self.table.servers:
                return []
            self.table = Table(self.term, self.table.epoch + 1, entries, self.table.owners)
        return self._tell_all(self.table) + self._update_members()

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
            for server in self._servers()
            if (server.name, server.incarnation) not in self.proposal.promises
        ]

    def _promised(self, promise: Promise) -> list[Tell]:
        proposal = self.proposal
        if proposal is None or promise.number != proposal.number:
            return []
        proposal.promises[promise.server, promise.incarnation] = promise.round
        wanted = [(server.name, server.incarnation) for server in self._servers()]
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

    def _servers(self) -> tuple[ServerEntry, ...]:
        return self.table.servers if self.table else ()


def _entry(join: Join) -> ServerEntry:
    return ServerEntry(join.name, join.address, join.incarnation)
