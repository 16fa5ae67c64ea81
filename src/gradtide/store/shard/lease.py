"""When a member must be heard of: joining until welcomed, then beating well within the lease. Pure."""

from dataclasses import dataclass

from gradtide.store.wire.messages import Welcome

__all__ = ["JOIN_AGAIN_S", "LEASE_S", "Lease"]

LEASE_S = 2.0  # until the coordinator has said how long it is
JOIN_AGAIN_S = 0.2  # how long a joiner waits for its welcome before it asks again


@dataclass(slots=True)
class Lease:
    """One member's side of its lease."""

    welcomed: bool = False
    refused: str = ""  # why the coordinator doesn't want this incarnation
    lease_s: float = 0.0
    next_s: float = 0.0
    leased_until_s: float = 0.0  # until then the coordinator has not given us up

    @property
    def was_granted(self) -> bool:
        """Whether a beat was ever answered: before that, who has just come is about to be confirmed."""
        return self.leased_until_s > self.lease_s

    def is_due(self, now_s: float) -> bool:
        """Is it time to be heard of? Asking sets the next time."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + (self.lease_s / 4 if self.welcomed else JOIN_AGAIN_S)
        return True

    def welcome(self, word: Welcome, now_s: float) -> None:
        """The coordinator knows us, or refuses us."""
        if not word.accepted:  # without a text: it has forgotten us, so join again
            self.refused, self.welcomed, self.lease_s = word.text, False, word.lease_s
            self.next_s = now_s + (JOIN_AGAIN_S if word.text else 0.0)
            return
        self.refused = ""
        if not self.welcomed:
            self.next_s = now_s + word.lease_s / 4
        self.welcomed, self.lease_s = True, word.lease_s
        self.leased_until_s = max(self.leased_until_s, word.clock_s + word.lease_s)
