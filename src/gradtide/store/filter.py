"""The exactly-once filter of a shard: what each client has said last, and what it was answered.

It is part of the shard's state, so it replicates, moves and is checkpointed together with the values.
"""

from dataclasses import dataclass, field
from typing import Literal

from gradtide.store.messages import Pushed, Refused

__all__ = ["WINDOW", "Answered", "ClientRecord", "Filter", "Verdict"]

# How many answers a shard keeps for each client. A client never has more unanswered pushes on a shard than this.
WINDOW = 256

Answered = Pushed | Refused
Verdict = Literal["new", "waits", "answered", "early", "forgotten", "incarnation"]


@dataclass(slots=True)
class ClientRecord:
    """One client: the highest sequence that was admitted, and the last answers (None: its round is still open)."""

    incarnation: int
    highest: int = 0
    answers: dict[int, Answered | None] = field(default_factory=dict)


@dataclass(slots=True)
class Filter:
    """Of all clients of a shard."""

    records: dict[str, ClientRecord] = field(default_factory=dict)

    def judge(self, client: str, incarnation: int, sequence: int, after: int) -> Verdict:
        """Has this been said before, and may it be said now? Changes nothing."""
        record = self.records.get(client)
        if record is None or record.incarnation < incarnation:
            return "early" if after else "new"
        if record.incarnation > incarnation:
            return "incarnation"
        if sequence in record.answers:
            return "waits" if record.answers[sequence] is None else "answered"
        if sequence <= record.highest:
            return "forgotten"
        return "early" if after > record.highest else "new"

    def is_current(self, client: str, incarnation: int) -> bool:
        """Has no later start of this client been here?"""
        record = self.records.get(client)
        return record is None or record.incarnation <= incarnation

    def has_seen(self, client: str, incarnation: int, sequence: int) -> bool:
        """Did the push with this sequence arrive?"""
        record = self.records.get(client)
        return sequence == 0 or (record is not None and (record.incarnation, record.highest) >= (incarnation, sequence))

    def admit(self, client: str, incarnation: int, sequence: int) -> None:
        """Note that a new push is in; its answer follows."""
        record = self.records.get(client)
        if record is None or record.incarnation < incarnation:
            record = self.records[client] = ClientRecord(incarnation)
        record.highest = sequence
        record.answers[sequence] = None
        self._forget_oldest(record)

    def settle(self, client: str, incarnation: int, answer: Answered) -> None:
        """Note the answer of an admitted push."""
        record = self.records.get(client)
        if record is not None and record.incarnation == incarnation and answer.sequence in record.answers:
            record.answers[answer.sequence] = answer

    def answer(self, client: str, sequence: int) -> Answered:
        """The answer that an earlier copy of this push got."""
        answer = self.records[client].answers[sequence]
        assert answer is not None
        return answer

    def forget(self, client: str, incarnation: int) -> None:
        """A client is gone: drop its answers, but refuse this incarnation should it come back, for they are gone."""
        if self.is_current(client, incarnation):
            self.records[client] = ClientRecord(incarnation + 1)

    @staticmethod
    def _forget_oldest(record: ClientRecord) -> None:
        while len(record.answers) > WINDOW:
            oldest = next(iter(record.answers))
            if record.answers[oldest] is None:  # still waits for its round: it can't be forgotten
                return
            del record.answers[oldest]
