"""Who may be who: the incarnations that were given, and why somebody is refused. Pure."""

from dataclasses import dataclass, field

import msgspec

from gradtide.store.coordinator.peers import Peer
from gradtide.store.wire.messages import Absent, Join

__all__ = ["NUMBERS", "Admission"]

NUMBERS = 1 << 20  # incarnations that are set aside at once, so that the journal need not be written for each


@dataclass(slots=True)
class Admission:
    """`peers` are the coordinator's own."""

    peers: dict[str, Peer]
    numbers: int = 0  # the last incarnation that was given
    set_aside: int = NUMBERS  # none above this one has been
    absent: Absent = field(default_factory=Absent)  # those who will not come again

    def restore(self, numbers: int, absent: Absent) -> None:
        """From the journal, once `peers` has all whom it knows."""
        self.numbers = max([numbers, *(peer.join.incarnation for peer in self.peers.values())])
        self.set_aside = self.numbers + NUMBERS
        self.absent = absent

    def forget_others(self) -> Absent:
        """All clients but those who are known now will not come again."""
        clients = (peer.join for peer in self.peers.values() if peer.join.role != "server")
        self.absent = Absent(self.numbers + 1, tuple(sorted(join.incarnation for join in clients)))
        return self.absent

    def why_not(self, join: Join, *, knows_more: bool) -> str:
        """Why somebody can't be who he says he is; nothing if he can."""
        known = self.peers.get(join.name)
        gone = join.incarnation > 0 and self.absent.includes(join.incarnation)
        if join.role != "server" and (gone or knows_more or self._is_made_up(join.incarnation)):
            return f"{join.name} is not known here any more, or belongs to an earlier store; connect again"
        if known is not None and (known.join.role == "server") != (join.role == "server"):
            return f"{join.name} is the name of a {known.join.role} here; give this one a name of its own"
        if known is not None and known.join.incarnation > join.incarnation > 0:
            return f"{join.name} has been started again since; this one must stop"
        if known is not None and known.alive and join.role == "server" and not _is_same(known.join, join):
            where = f" at {known.join.address}" if known.join.address else ""
            return f"another {join.name}{where} is alive; give this one a name of its own"
        rival = self.rival(join)
        taken = f"worker {join.worker} is taken by {{}}, which is alive; choose another number"
        return "" if rival is None else taken.format(rival.join.name)

    def _is_made_up(self, incarnation: int) -> bool:
        """Nobody can have been given it. All who come later get higher ones, and there must be some left."""
        return incarnation > self.set_aside + NUMBERS

    def numbered(self, join: Join) -> Join:
        """With an incarnation that nobody has had; the same for who asks again."""
        known = self.peers.get(join.name)
        if join.incarnation == 0 and known is not None and _is_same(known.join, join):
            return msgspec.structs.replace(join, incarnation=known.join.incarnation)
        if join.incarnation == 0:
            join = msgspec.structs.replace(join, incarnation=self.numbers + 1)
        self.numbers = max(self.numbers, join.incarnation)
        if self.numbers > self.set_aside:
            self.set_aside = self.numbers + NUMBERS
        return join

    def rival(self, join: Join) -> Peer | None:
        """Another process that is this worker and alive."""
        if join.role != "worker":
            return None
        others = (peer for name, peer in self.peers.items() if name != join.name and peer.alive)
        return next((peer for peer in others if peer.join.worker == join.worker), None)


def _is_same(one: Join, other: Join) -> bool:
    """Are these words of the same process?"""
    return one.incarnation == other.incarnation or (other.incarnation == 0 and one.token == other.token > 0)
