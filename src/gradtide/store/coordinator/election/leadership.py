"""Which of several coordinators leads, and until when it can prove that. Pure.

The leader renews its seat in the register twice a second; each time the register shows that, as a revision. A leader
says that it leads for PROOF_S from **before** it asked for what was confirmed. Whoever stands by and sees the same
revision for TAKE_OVER_S from **after** it saw it first takes the seat, if the revision is still the same: by then the
last proof has run out, if no two clocks differ by more than a tenth in speed. Where the seat is empty, because the
register's own lease ran out, nobody knows when it was renewed last: its new owner waits for as long. A leader whose
proof has run out leads no more; it may take its own seat again at once, since it knows that nobody sits there.

Nothing here trusts how long the register keeps a seat. (etcd gives all leases time anew when its own leader changes,
and an old leader of etcd may confirm a lease that a new one lets go.)
"""

import math
from dataclasses import dataclass

from gradtide.store.coordinator.election.register import (
    Answer,
    Campaign,
    Deposed,
    Elected,
    Kept,
    LeaderSeat,
    Renew,
    Sighting,
    Unreachable,
)

__all__ = ["PROOF_S", "TAKE_OVER_S", "Leadership"]

PROOF_S = 3.0
TAKE_OVER_S = 3.4
_RENEW_S = 0.5
_LOOK_S = 0.25


@dataclass(slots=True)
class Leadership:
    """Ask the register what `question` returns, and give the answer to `hear`; one at a time."""

    address: str  # where this one is reached
    token: str  # of this process: nobody else's
    seat: LeaderSeat | None = None
    proven_until_s: float = -math.inf
    unreachable: str = ""  # why the register does not answer
    reached: bool = False  # whether it ever has
    seen: Sighting | None = None  # the leader, as far as is known
    seen_s: float = 0.0  # since when it is just so
    _next_s: float = -math.inf
    _asked: Campaign | Renew | None = None
    _asked_s: float = 0.0
    _campaigns: int = 0

    def leads(self, now_s: float) -> bool:
        """Can it be proven?"""
        return self.seat is not None and now_s < self.proven_until_s

    @property
    def leader(self) -> str:
        """Where the leader is reached, as far as is known."""
        return self.seen.leader if self.seen is not None else ""

    def question(self, now_s: float) -> Campaign | Renew | None:
        """What to ask now, if anything."""
        if self._asked is not None or now_s < self._next_s:
            return None
        self._asked, self._asked_s = self._draw_up(now_s), now_s
        return self._asked

    def _draw_up(self, now_s: float) -> Campaign | Renew:
        if self.seat is not None:
            return Renew(self.seat)
        self._campaigns += 1
        own = self.seen is not None and self.seen.token.startswith(f"{self.token}-")
        free = self.seen is not None and (own or now_s - self.seen_s > TAKE_OVER_S)
        return Campaign(self.address, f"{self.token}-{self._campaigns}", self.seen if free else None)

    def hear(self, answer: Answer, now_s: float) -> float | None:
        """If it has just been elected: for how many seconds its predecessor may still think that it leads."""
        self._asked = None
        self.unreachable = answer.why if isinstance(answer, Unreachable) else ""
        self.reached = self.reached or not self.unreachable
        self._next_s = now_s + _LOOK_S
        match answer:
            case Elected():
                self.seat, self.proven_until_s, self._next_s = answer.seat, self._asked_s + PROOF_S, now_s
                self.seen = None
                return 0.0 if answer.clear else TAKE_OVER_S
            case Kept() if self.seat is not None:
                self.proven_until_s = self._asked_s + PROOF_S
                self._next_s = self._asked_s + _RENEW_S
            case Deposed():
                self.depose()
            case Sighting() if answer != self.seen:
                self.seen, self.seen_s = answer, now_s
        return None

    def depose(self) -> None:
        """Somebody else leads, or will."""
        self.seat, self.proven_until_s, self.seen = None, -math.inf, None
