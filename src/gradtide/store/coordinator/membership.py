"""Who is alive, who holds what, who is in the rounds: the coordinator, pure.

How a shell drives it: every message of a peer goes to `hear(message, now_s)`, time to `tick(now_s)`; both return a list
of `Tell(name, message)` to be sent, in order, to the connection that peer has now. Everything that is told is a whole
state with a number (table: epoch; decree: number), so it may be lost, repeated or overtaken: a peer's next beat says
what it knows, and it is told what is newer.

`take_unwritten()` gives the state that must be on disk before anything of what was returned is told. A coordinator that
starts again gets it back by `restore`, and goes on with a higher term: nothing that a server says can replace it.

Who may come is admission.py's to say, who is in the rounds round_members.py's, who holds which shard tables.py's.
"""

import math

import msgspec

from gradtide.errors import StoreError
from gradtide.store.coordinator.admission import Admission
from gradtide.store.coordinator.loss_policy import Recovery
from gradtide.store.coordinator.peers import Peer, Tell
from gradtide.store.coordinator.round_members import RoundMembers
from gradtide.store.coordinator.tables import Tables
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
    Rival,
    Table,
    Welcome,
)

__all__ = ["Membership", "Record"]


# After so many leases without a word a client is forgotten; should it come back, it must start again.
FORGET_LEASES = 60
# How long a client may say nothing while its connection stands: an interpreter that compiles or imports is not dead.
WORKER_LEASE_S = 60.0


class Record(msgspec.Struct, frozen=True):
    """What a coordinator that starts again must know: the journal's content."""

    term: int
    number: int
    table: Table | None
    decree: Decree | None
    numbers: int = 0  # no incarnation above this one has been given
    absent: Absent = Absent()


class Membership:
    """The coordinator's state."""

    def __init__(self, lease_s: float = 2.0, term: int = 1, written: Record | None = None) -> None:
        self.lease_s = lease_s
        self.written = written  # what is on disk
        self.peers: dict[str, Peer] = {}
        self.worker_lease_s = WORKER_LEASE_S
        self.accept_loss = False  # go on with a journal that is not the last one
        self._admission = Admission(self.peers)
        self._rounds = RoundMembers(self.peers, term)
        self._tables = Tables(self.peers, self._rounds, self._admission, lease_s, term)
        self._forget_from_s = 0.0  # when clients may next be forgotten: who was there must have been heard of again
        self._gone = False  # clients are gone, and the servers have not been told
        self._deferred = False  # somebody came or went before all servers were heard of
        self.inherited_until_s = -math.inf  # until then somebody else may have given leases

    def recover_by(self, recovery: Recovery) -> None:
        """What becomes of shards that are lost."""
        self._tables.recovery = recovery

    @property
    def term(self) -> int:
        return self._tables.term

    @property
    def table(self) -> Table | None:
        return self._tables.table

    @property
    def leaving(self) -> frozenset[str]:
        """The names of the servers that are to be let go."""
        return self._tables.leaving

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
                return self._tables.caught_up(message)
            case Lagging():
                return self._tables.lagging(message)
        return []

    def lost(self, name: str, incarnation: int, *, at_once: bool = True) -> list[Tell]:
        """A connection was closed. A server's process has died: that is noticed at once, not when its lease runs out. A
        client may connect again, and has a server's lease for it; so has a server where that is not `at_once`."""
        peer = self.peers.get(name)
        if peer is None or peer.join.incarnation != incarnation or not peer.alive:
            return []
        if peer.join.role != "server":
            peer.connected = False
            return []
        if not at_once or self._tables.ticked_s < self.inherited_until_s + self.lease_s:
            return []  # it may have gone to who led before, and have a lease of his
        peer.alive = False
        return self._tables.update()

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
        listed = [entry.name for entry in self._tables.servers]
        least = self.table.replicas + 1 if self.table is not None else 1
        if self._tables.awaits_servers:
            return Resized(tuple(listed), (), "the coordinator has just been started; ask again in a moment"), []
        if self.table is None or servers < least:
            text = "the store has not begun; wait for its servers" if not listed else (
                f"{servers} servers are too few: each of the {least} copies is on a server of its own"
            )  # fmt: skip
            return Resized(tuple(listed), (), text), []
        worst_last = sorted(listed, key=lambda name: (not self.peers[name].alive, name in self.leaving))
        staying, going = worst_last[:servers], worst_last[servers:]
        return Resized(tuple(staying), tuple(going)), self._tables.update(goers=frozenset(going))

    # --- the journal ---

    def take_unwritten(self) -> Record | None:
        """The state, if it is not what is on disk: to be written before anybody is told."""
        record = self.unwritten()
        self.written = record or self.written
        return record

    def unwritten(self) -> Record | None:
        """The same, by who says himself when it is `written`."""
        known = self._admission
        record = Record(self.term, self._rounds.number, self.table, self.decree, known.set_aside, known.absent)
        return record if record != self.written else None

    @classmethod
    def restore(cls, record: Record, now_s: float, lease_s: float = 2.0) -> "Membership":
        """Start again from the journal. Everybody in it has a lease's time to be heard of."""
        term = record.term + 1
        membership = cls(lease_s, term, record)
        rounds = RoundMembers.restore(membership.peers, term, record.decree, record.number)
        membership._rounds = membership._tables.rounds = rounds
        if record.table is not None:
            membership._tables.restore(record.table)
            for entry in record.table.servers:
                join = Join("server", entry.name, entry.incarnation, entry.address, replicas=record.table.replicas)
                membership.peers[entry.name] = Peer(join, now_s, heard=False)
        for member in record.decree.members if record.decree else ():
            join = Join("worker", member.client, member.incarnation, worker=member.worker)
            membership.peers[member.client] = Peer(join, now_s, connected=False)
        membership._admission.restore(record.numbers, record.absent)
        membership._forget_from_s = now_s + FORGET_LEASES * lease_s
        return membership

    def inherit(self, now_s: float, inherited_s: float) -> None:
        """So long another coordinator may still give leases, which this one waits out before it replaces anybody. Where
        there is no table yet there is nobody to replace, and the first may be dealt."""
        if inherited_s:
            self._tables.ticked_s = now_s
            self.inherited_until_s = now_s + inherited_s
            self._tables.inherited_until_s = self.inherited_until_s if self.table is not None else 0.0

    def tick(self, now_s: float) -> list[Tell]:
        """Time goes by: leases run out, and promises that are overdue are asked for again."""
        self._excuse_own_absence(now_s)
        late = [
            peer for peer in self.peers.values() if peer.alive and self._silent_s(peer, now_s) > self._patience_s(peer)
        ]
        for peer in late:
            peer.alive = False
        told = self._tables.update() if any(peer.join.role == "server" for peer in late) else []
        told += self._update_rounds() if self._deferred or any(peer.join.role == "worker" for peer in late) else []
        if not self._tables.awaits_servers:
            told += self._rounds.ask_again(self.table, now_s, self.lease_s / 4) + self._tables.balance(now_s)
        return told + self._forget_the_lost(now_s)

    def _describe_rival(self, join: Join, now_s: float) -> Rival | None:
        peer = self._admission.rival(join)
        if peer is None:
            return None
        return Rival(peer.join.name, peer.words, max(0.0, self._patience_s(peer) - self._silent_s(peer, now_s)))

    def _update_rounds(self) -> list[Tell]:
        self._deferred = self._tables.awaits_servers
        return [] if self._deferred else self._rounds.update(self.table)

    def _silent_s(self, peer: Peer, now_s: float) -> float:
        """For how long neither this coordinator nor who led before it can have heard of somebody."""
        return now_s - max(peer.heard_s, self.inherited_until_s)

    def _patience_s(self, peer: Peer) -> float:
        """A server's lease is tied to its loop; a client's life is its connection."""
        is_server = peer.join.role == "server"
        return self.lease_s if is_server or not peer.connected else max(self.lease_s, self.worker_lease_s)

    def _excuse_own_absence(self, now_s: float) -> None:
        """Was it the coordinator itself that was stopped or starved? Then nobody else was late."""
        absent_s = now_s - self._tables.ticked_s
        if self._tables.ticked_s and absent_s > self.lease_s / 4:
            for peer in self.peers.values():
                peer.heard_s = min(now_s, peer.heard_s + absent_s)
        self._tables.ticked_s = now_s

    def _forget_the_lost(self, now_s: float) -> list[Tell]:
        deadline_s = now_s - FORGET_LEASES * self.lease_s
        # Who hangs while its connection stands is not lost yet, however long it may do so: rounds wait for it.
        known = (p for p in self.peers.values() if p.dismissed or (p.join.role != "server" and not p.alive))
        for name in [peer.join.name for peer in known if peer.heard_s < deadline_s]:
            self._forget(name)
        if not self._gone or now_s < self._forget_from_s:
            return []
        self._gone, self._forget_from_s = False, now_s + self.lease_s
        gone = Gone(self._admission.forget_others())
        return [Tell(server.name, gone) for server in self._tables.servers]

    def _forget(self, name: str) -> None:
        """A client is gone: so may soon be what the servers remember of it."""
        del self.peers[name]
        self._gone = True

    # --- peers ---

    def _join(self, join: Join, now_s: float) -> list[Tell]:
        given_up: list[Tell] = []
        if self._knows_more(join) and join.role == "server":
            given_up = self._lost_journal(join)
        refused = self._admission.why_not(join, knows_more=self._knows_more(join))
        if refused:
            rival = self._describe_rival(join, now_s)
            welcome = Welcome(join.name, join.incarnation, self.lease_s, False, refused, token=join.token, rival=rival)
            return [*given_up, Tell(join.name, welcome)]
        known = self.peers.get(join.name)
        join = self._admission.numbered(join)
        same = known is not None and known.join.incarnation == join.incarnation
        again = same and known is not None and known.alive and known.heard
        self.peers[join.name] = Peer(join, now_s, dismissed=known is not None and same and known.dismissed)
        told = [Tell(join.name, Welcome(join.name, join.incarnation, self.lease_s, token=join.token))]
        if not again and join.role == "server":
            told += self._tables.update()
        if not again and join.role == "worker":
            told += self._update_rounds()
        return given_up + told + self._catch_up(Beat(join.name, join.incarnation))

    def _knows_more(self, peer: Join | Beat) -> bool:
        """Who was told more than we know was told it by a coordinator whose journal we have not. Of an earlier term
        than this one nobody can know more than what this one began with."""
        epoch = self._tables.restored if peer.term < self.term else self.epoch
        decree = peer.decree if isinstance(peer, Beat) else 0  # of whichever term
        return peer.term > self.term or peer.epoch > epoch or decree > self._rounds.number

    def _lost_journal(self, server: Join | Beat) -> list[Tell]:
        """A server knows more than we do: the journal is an old one, or none."""
        if self.accept_loss:
            return self._give_up_all(server)
        raise StoreError(
            f"{server.name} is at term {server.term}, epoch {server.epoch} of this store, and the journal here ends at "
            f"term {self.term - 1}, epoch {self._tables.restored}: it is an old one, or none; start the coordinator "
            "with the journal that it had last, or with --accept-loss: all begins anew, or with the last checkpoint"
        )

    def _give_up_all(self, server: Join | Beat) -> list[Tell]:
        """What is known here is not what was acknowledged: all shards begin anew, and all who use them are told."""
        self._rounds.term = max(self.term, server.term) + 1
        self._rounds.number = max(self._rounds.number, server.decree if isinstance(server, Beat) else 0)
        return self._tables.give_up_all(self._rounds.term, max(self.epoch, server.epoch))

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
        back = not (peer.alive and peer.heard) or self._tables.is_overdue(peer)
        peer.heard_s, peer.alive, peer.heard, peer.connected = now_s, True, True, True
        peer.words += 1
        welcome = Welcome(beat.name, beat.incarnation, self.lease_s, clock_s=beat.clock_s)
        told = self._tables.update() if back and is_server else []
        return [*given_up, Tell(beat.name, welcome), *told, *self._catch_up(beat)]

    def _leave(self, leave: Leave) -> list[Tell]:
        peer = self.peers.get(leave.name)
        if peer is None or peer.join.incarnation != leave.incarnation:
            return []
        if peer.join.role == "server":
            return self._tables.update(goers=self.leaving | {leave.name})
        if leave.until:
            return self._rounds.announce_leave(leave, self.table)
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
