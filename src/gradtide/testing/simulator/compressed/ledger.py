"""What was pushed to compressed keys in a run, as which bytes, and what workers were given back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradtide.store.wire.messages import Piece, Push
from gradtide.testing.simulator.history import Operated, Place, Violation

__all__ = ["Ledger", "PushEntry", "Sent"]


@dataclass(frozen=True, slots=True)
class Sent:
    """One block of a push: the gradient, and the bytes that went for it."""

    shard: int
    count: int
    gradient: Tensor
    body: bytes
    encoded: bool


@dataclass(slots=True)
class PushEntry:
    """One push."""

    operated: Operated
    sent: Mapping[Place, Sent]
    applied: frozenset[int] = frozenset()  # of its shards, those that have said so

    def is_undone(self, place: Place) -> bool:
        """It was refused, and this block's shard had not said that it is in."""
        return bool(self.operated.refused) and self.sent[place].shard not in self.applied

    def is_acknowledged(self, place: Place) -> bool:
        return self.operated.done_s is not None and not self.is_undone(place)


@dataclass(slots=True)
class Ledger:
    """Of one run."""

    pushes: dict[tuple[str, int], PushEntry] = field(default_factory=dict)  # by client and sequence
    given: dict[tuple[Place, int], tuple[bytes, str]] = field(default_factory=dict)  # (block, round) -> to whom first
    residuals: dict[str, Mapping[Place, Tensor]] = field(default_factory=dict)  # client -> what it has left out now
    gone: set[str] = field(default_factory=set)  # clients that died, left, or were told that they are gone
    flushed: set[tuple[str, Place]] = field(default_factory=set)  # who has sent all that it had left out of a block
    broken: list[Violation] = field(default_factory=list)
    sends: int = 0  # requests that carried pushes
    encoded: int = 0  # pulls of which something came encoded
    whole: int = 0  # pulls in rounds of which all came whole

    def note_arrival(self, push: Push, pieces: Sequence[Piece], bodies: Sequence[bytes]) -> None:
        """What a server is sent is what was encoded, however often it comes."""
        entry = self.pushes[push.client, push.sequence]
        for piece, body in zip(pieces, bodies, strict=True):
            if entry.sent[piece.key, piece.block].body != body:
                text = f"push {push.sequence} of {push.client} came with other bytes for {piece.key}[{piece.block}]"
                self.broken.append(Violation("the same bytes", text))

    def note_given(self, place: Place, round_: int, values: bytes, client: str) -> None:
        """All who are given a round are given the same, encoded or whole."""
        first, who = self.given.setdefault((place, round_), (values, client))
        if first != values:
            text = f"{client} has other values of {place} after round {round_} than {who}"
            self.broken.append(Violation("one answer", text))

    @property
    def lost(self) -> dict[str, int]:
        """Clients that died, left, or were told that they are gone: how many values that they had left out went too."""
        counts = {who: sum(int(left.count_nonzero()) for left in self.residuals[who].values()) for who in self.gone}
        return {client: count for client, count in sorted(counts.items()) if count}

    def __str__(self) -> str:
        lost = ", ".join(f"{count} of {client}" for client, count in self.lost.items()) or "none"
        return (
            f"{len(self.pushes)} compressed pushes, sent in {self.sends} requests; pulls of rounds: "
            f"{self.encoded} encoded, {self.whole} whole; "
            f"values that were left out and are lost with who died or left: {lost}"
        )
