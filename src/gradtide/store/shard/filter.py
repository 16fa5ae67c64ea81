"""The exactly-once filter of a shard: what each client has said last, and what it was answered.

It is part of the shard's state, so it replicates, moves and is checkpointed together with the values.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from gradtide.store.wire.credit import ANSWERS_KEPT
from gradtide.store.wire.messages import Absent, Pushed, RecordImage, Refused, Settled

__all__ = ["Answered", "ClientRecord", "Filter", "Verdict"]

Answered = Pushed | Refused
Verdict = Literal["new", "waits", "answered", "early", "forgotten", "incarnation"]


@dataclass(slots=True)
class ClientRecord:
    """One client: the highest sequence that was admitted, and the last answers (None: its round is still open)."""

    incarnation: int
    highest: int = 0
    answers: dict[int, Answered | None] = field(default_factory=dict)
    floor: int = 0  # the highest whose answer was dropped
    restored: int = 0  # up to here a sequence without an answer waited for its round when the primary died
    partial: set[int] = field(default_factory=set)  # of these the part outside of rounds is applied
    waiting: set[int] = field(default_factory=set)  # for their rounds; a replica knows those up to the floor

    def is_missing(self, sequence: int) -> bool:
        """Did it wait for its round when the primary died? Then it must come again."""
        lost = self.floor < sequence <= self.restored or (self.restored > 0 and sequence in self.waiting)
        return lost and sequence not in self.answers


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
        if sequence <= record.highest and not record.is_missing(sequence):
            return "forgotten"
        return "new" if self.has_seen(client, incarnation, after) else "early"

    def is_current(self, client: str, incarnation: int) -> bool:
        """Has no later start of this client been here?"""
        record = self.records.get(client)
        return record is None or record.incarnation <= incarnation

    def has_seen(self, client: str, incarnation: int, sequence: int) -> bool:
        """Did the push with this sequence arrive?"""
        record = self.records.get(client)
        if sequence == 0 or record is None:
            return sequence == 0
        return (record.incarnation, record.highest) >= (incarnation, sequence) and not record.is_missing(sequence)

    def admit(self, client: str, incarnation: int, sequence: int) -> None:
        """Note that a new push is in; its answer follows."""
        record = self._record(client, incarnation)
        record.highest = max(record.highest, sequence)
        record.answers[sequence] = None
        record.waiting.add(sequence)
        self.forget_oldest(record)

    def settle(self, client: str, incarnation: int, answer: Answered) -> None:
        """Note the answer of an admitted push."""
        record = self.records.get(client)
        if record is not None and record.incarnation == incarnation and answer.sequence in record.answers:
            record.answers[answer.sequence] = answer
            record.waiting.discard(answer.sequence)

    def waiting_below(self, client: str) -> tuple[int, ...]:
        """What waits for its round although so much later was answered that the replicas forget what is as old."""
        record = self.records.get(client)
        if record is None or not record.floor:
            return ()
        return tuple(sorted(sequence for sequence in record.waiting if sequence <= record.floor))

    def has_applied_part(self, client: str, sequence: int) -> bool:
        """Was what is outside of rounds in this push applied by a primary that died?"""
        record = self.records.get(client)
        return record is not None and sequence in record.partial

    def replay(self, settled: Settled) -> None:
        """As a replica: take over what the primary noted."""
        record = self.records.get(settled.client)
        if record is not None and record.incarnation > settled.incarnation:
            return
        if settled.answer is None:
            record = self._record(settled.client, settled.incarnation)
            record.highest = max(record.highest, settled.sequence)
            record.partial.add(settled.sequence)
            return
        self.admit(settled.client, settled.incarnation, settled.sequence)
        self.settle(settled.client, settled.incarnation, settled.answer)
        record = self.records[settled.client]
        record.partial.discard(settled.sequence)
        record.waiting = set(settled.waiting)

    def take_over(self) -> None:
        """As a replica that is now the primary: what the old one admitted and never settled must come again."""
        for record in self.records.values():
            record.answers = {sequence: answer for sequence, answer in record.answers.items() if answer is not None}
            record.restored = record.highest

    def images(self) -> tuple[RecordImage, ...]:
        """Everything, but for what waits for its round."""
        return tuple(
            RecordImage(
                client, record.incarnation, record.highest, record.floor,
                tuple(answer for answer in record.answers.values() if answer is not None),
                tuple(sorted(record.partial)),
                self.waiting_below(client),
            )
            for client, record in self.records.items()
        )  # fmt: skip

    @classmethod
    def from_images(cls, images: Iterable[RecordImage]) -> "Filter":
        records = {}
        for image in images:
            answers: dict[int, Answered | None] = {answer.sequence: answer for answer in image.answers}
            record = ClientRecord(image.incarnation, image.highest, answers, image.floor, partial=set(image.partial))
            record.waiting = set(image.waiting)
            records[image.client] = record
        return cls(records)

    def answer(self, client: str, sequence: int) -> Answered:
        """The answer that an earlier copy of this push got."""
        answer = self.records[client].answers[sequence]
        assert answer is not None
        return answer

    def forget(self, absent: Absent) -> None:
        """Clients are gone: whoever asks here must refuse them, for what they were answered is gone too."""
        for client in [name for name, record in self.records.items() if absent.includes(record.incarnation)]:
            del self.records[client]

    def _record(self, client: str, incarnation: int) -> ClientRecord:
        record = self.records.get(client)
        if record is None or record.incarnation < incarnation:
            record = self.records[client] = ClientRecord(incarnation)
        return record

    @staticmethod
    def forget_oldest(record: ClientRecord) -> None:
        """Keep the last ones, and those that still wait for their round."""
        too_many = len(record.answers) - ANSWERS_KEPT
        if too_many > 0:
            settled = (sequence for sequence, answer in record.answers.items() if answer is not None)
            for oldest in list(islice(settled, too_many)):
                del record.answers[oldest]
                record.floor = max(record.floor, oldest)
