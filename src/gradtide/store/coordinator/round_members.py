"""Who is in the rounds: a coordinator's decrees, and how they come to be. Pure.

A worker joins in two steps. **Propose**: every primary of the table names a round that it has not closed, and promises
not to close it before the next decree. **Decree**: the worker is in from the highest of these on; so no shard can have
closed its first round without it. Leaving needs no promise: nobody waits for who is no longer listed.
"""

from dataclasses import dataclass, field

import msgspec

from gradtide.store.coordinator.peers import Peer, Tell, tell_all
from gradtide.store.wire.messages import Decree, Join, Leave, Member, Promise, Propose, ServerEntry, Table

__all__ = ["Proposal", "RoundMembers"]


@dataclass(slots=True)
class Proposal:
    """A decree in the making: who wants in, and what the servers have promised."""

    number: int
    promises: dict[tuple[str, int], int] = field(default_factory=dict)  # (server, incarnation) -> round


@dataclass(slots=True)
class RoundMembers:
    """The decree in force, and the one in the making. `peers` are the coordinator's own."""

    peers: dict[str, Peer]
    term: int
    decree: Decree | None = None
    number: int = 0  # of the last proposal or decree
    proposal: Proposal | None = None
    asked_s: float = 0.0  # when the servers were last asked for promises

    @classmethod
    def restore(cls, peers: dict[str, Peer], term: int, decree: Decree | None, number: int) -> "RoundMembers":
        """From the journal. What was proposed last and not decreed goes on: servers may have promised, and close no
        round before they hear of a decree, whether who wanted in comes again or not."""
        made = cls(peers, term, decree, number)
        if decree is not None and number > decree.number:
            made.proposal = Proposal(number)
        return made

    def update(self, table: Table | None) -> list[Tell]:
        """Somebody came or went: take the goers out at once, and ask from which round the comers can be in."""
        members = self.members
        staying = tuple(member for member in members if self._still_in(member))
        told: list[Tell] = []
        if staying != members or self.proposal is not None:  # a dropped proposal must free those who promised
            self.proposal = None
            told += self._proclaim(staying)
        if self._comers(staying) and table is not None:
            told += self._propose(table)
        return told

    def announce_leave(self, leave: Leave, table: Table | None) -> list[Tell]:
        """A worker will go before a round: all are told, and it stays until then. That frees those who have promised
        something to who is about to come: they are asked again."""
        changed = tuple(
            msgspec.structs.replace(member, until=leave.until)
            if member.client == leave.name and not member.until
            else member
            for member in self.members
        )
        if changed == self.members:
            return []
        told, proposed, self.proposal = self._proclaim(changed), self.proposal, None
        return told + (self._propose(table) if proposed is not None and table is not None else [])

    def ask_again(self, table: Table | None, now_s: float, after_s: float) -> list[Tell]:
        """Promises that are overdue are asked for again."""
        if self.proposal is None or table is None or now_s - self.asked_s <= after_s:
            return []
        self.asked_s = now_s
        return self._ask(table)

    def promised(self, promise: Promise, table: Table | None) -> list[Tell]:
        """A primary has named a round; when all have, the comers are in."""
        proposal = self.proposal
        if proposal is None or promise.number != proposal.number or promise.epoch != (table or promise).epoch:
            return []
        proposal.promises[promise.server, promise.incarnation] = promise.round
        wanted = [(server.name, server.incarnation) for server in _primaries(table)]
        if any(server not in proposal.promises for server in wanted):
            return []
        first = max(proposal.promises[server] for server in wanted)
        self.proposal = None
        new = (Member(join.worker, first, join.name, join.incarnation) for join in self._comers(self.members))
        return self._proclaim(tuple(sorted([*self.members, *new], key=lambda member: member.worker)))

    @property
    def members(self) -> tuple[Member, ...]:
        return self.decree.members if self.decree else ()

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

    def _propose(self, table: Table) -> list[Tell]:
        self.number += 1
        self.proposal = Proposal(self.number)
        return self._ask(table)

    def _ask(self, table: Table) -> list[Tell]:
        assert self.proposal is not None
        return [
            Tell(server.name, Propose(self.term, self.proposal.number))
            for server in _primaries(table)
            if (server.name, server.incarnation) not in self.proposal.promises
        ]

    def _proclaim(self, members: tuple[Member, ...]) -> list[Tell]:
        self.number += 1
        self.decree = Decree(self.term, self.number, members)
        return tell_all(self.peers.values(), self.decree)


def _primaries(table: Table | None) -> list[ServerEntry]:
    """The servers that close rounds."""
    return [table.servers[i] for i in sorted(set(table.owners))] if table else []
