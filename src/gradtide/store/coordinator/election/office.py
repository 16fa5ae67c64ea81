"""A coordinator that is one of several: it stands by, or leads with a Membership whose journal is in a register. Pure.

How a shell drives it: what peers say goes to `hear`, time to `tick`; both return what to tell, as Membership's own do.
`questions(now_s)` are for the register, each to be answered by `answered`, which may return something to tell, too. A
coordinator that can't prove any more that it leads stands by from then on, as if it had just been started: who asks it
is told `elsewhere`.
"""

import math
from collections.abc import Callable

import msgspec

from gradtide.errors import DataError
from gradtide.store.coordinator.clerk import LateClerk
from gradtide.store.coordinator.election.leadership import Leadership
from gradtide.store.coordinator.election.register import Answer, Deposed, Elected, Question, Unreachable, Write, Written
from gradtide.store.coordinator.journal import pack, unpack
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import Elsewhere, Message

__all__ = ["MakeMembership", "Office"]

MakeMembership = Callable[[Record | None, float], Membership]  # from the journal, now


class Office:
    """`make` makes the Membership of a leader."""

    def __init__(self, address: str, token: str, make: MakeMembership) -> None:
        self.leadership = Leadership(address, token)
        self.membership: Membership | None = None
        self.clerk: LateClerk | None = None
        self._make = make
        self._revision = 0  # of the journal
        self._looked_s = -math.inf
        self._away_until_s = -math.inf  # for some time after it was stopped or starved itself

    def leads(self, now_s: float) -> bool:
        """If not, peers are to be told who does: `elsewhere`."""
        return self.membership is not None and self.leadership.leads(now_s)

    @property
    def elsewhere(self) -> Elsewhere:
        return Elsewhere(self.leadership.leader, self.leadership.unreachable)

    def hear(self, message: Message, now_s: float) -> list[Tell]:
        """A peer said something. May raise StoreError, as Membership's does."""
        return self.tellable(self.membership.hear(message, now_s), now_s) if self.membership is not None else []

    def lost(self, name: str, incarnation: int, now_s: float) -> list[Tell]:
        """A peer's connection was closed."""
        if self.membership is None:
            return []
        return self.tellable(self.membership.lost(name, incarnation, at_once=self.was_here(now_s)), now_s)

    def was_here(self, now_s: float) -> bool:
        """Or was it stopped or starved itself a moment ago? Then who closed a connection may have gone to look for
        another coordinator, and live."""
        lease_s = self.membership.lease_s if self.membership is not None else 0.0
        if now_s - self._looked_s > lease_s / 4:
            self._away_until_s = now_s + lease_s
        return now_s >= self._away_until_s

    def tick(self, now_s: float) -> list[Tell]:
        """Time goes by."""
        return self.tellable(self.membership.tick(now_s), now_s) if self.membership is not None else []

    def tellable(self, told: list[Tell], now_s: float) -> list[Tell]:
        """Of what was decided, what may be told now; some of the rest is told when it is written."""
        if self.clerk is None or not self.leadership.leads(now_s):
            return []
        return self.clerk.tellable(told, now_s)

    def questions(self, now_s: float) -> list[Question]:
        """What to ask the register now."""
        found: list[Question] = []
        self.was_here(now_s)
        self._looked_s = now_s
        if self.membership is not None and not self.leadership.leads(now_s):
            self.leadership.depose()
            self._end()
        if (question := self.leadership.question(now_s)) is not None:
            found.append(question)
        if self.clerk is not None and self.leadership.seat is not None and (record := self.clerk.take()) is not None:
            found.append(Write(self.leadership.seat, self._revision, pack(record)))
        return found

    def answered(self, question: Question, answer: Answer, now_s: float) -> list[Tell]:
        """What the register said; of a question that was asked in an earlier time as leader nothing follows."""
        if isinstance(question, Write):
            return self._wrote(question, answer, now_s)
        inherited_s = self.leadership.hear(answer, now_s)
        if isinstance(answer, Elected) and inherited_s is not None:
            self._begin(answer, now_s, inherited_s)
        elif isinstance(answer, Deposed):
            self._end()
        return []

    def _begin(self, elected: Elected, now_s: float, inherited_s: float) -> None:
        record = read_record(elected.content) if elected.content is not None else None
        self._revision = elected.revision
        self.membership = self._make(record, now_s)
        self.membership.inherit(now_s, inherited_s)
        self.clerk = LateClerk(self.membership)

    def _wrote(self, write: Write, answer: Answer, now_s: float) -> list[Tell]:
        if self.clerk is None or write.seat != self.leadership.seat:
            return []
        match answer:
            case Written():
                self._revision = answer.revision
                told = self.clerk.wrote()
                return told if self.leadership.leads(now_s) else []
            case Deposed():
                self.leadership.depose()
                self._end()
            case Unreachable():
                self.clerk.failed(answer.why, now_s)
        return []

    def _end(self) -> None:
        self.membership = self.clerk = None


def read_record(content: bytes) -> Record:
    """Of a journal's bytes, wherever they were."""
    try:
        return unpack(content)
    except (ValueError, msgspec.MsgspecError):
        raise DataError("what is kept there is no journal of a coordinator, or not whole; give another job") from None
