"""One linearizable register with leases, as etcd is one: what it is asked is done at one moment, or never.

Questions and answers take their time and are lost; a question whose asker has given up may be done all the same, later.
A seat's lease may end early: nothing may depend on how long it lasts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from gradtide.store.coordinator.election.register import (
    Answer,
    Campaign,
    Deposed,
    Elected,
    Kept,
    LeaderSeat,
    Question,
    Renew,
    Sighting,
    Unreachable,
    Write,
    Written,
)
from gradtide.store.coordinator.journal import unpack
from gradtide.store.coordinator.membership import Record
from gradtide.testing.simulator.clock import VirtualClock

__all__ = ["RegisterFaults", "SimulatedRegister"]

_LEASE_S = 6.0
_GIVE_UP_S = 1.5


@dataclass(frozen=True, slots=True)
class RegisterFaults:
    """How bad the way to it is."""

    mean_delay_s: float = 0.01
    lost: float = 0.0  # probability that a question never arrives
    unanswered: float = 0.0  # ... that it is done, and the answer never arrives
    late: float = 0.0  # ... that it is done when its asker has given up
    early_end: float = 0.0  # ... that a lease ends early, each time it is renewed


@dataclass(slots=True)
class SimulatedRegister:
    """`wrote` hears every journal that is written; `cut` has who can't reach it now, "" for everybody."""

    clock: VirtualClock
    random: Random
    faults: RegisterFaults
    wrote: Callable[[Record], None]
    cut: list[str] = field(default_factory=list)
    fenced: bool = True  # False: a mutation, that writes without comparing who leads
    seat: LeaderSeat | None = None
    sighting: Sighting = field(default_factory=lambda: Sighting("", "", 0))
    content: bytes | None = None
    journal_revision: int = 0
    _revision: int = 0
    _renewals: int = 0

    def ask(self, who: str, question: Question, hear: Callable[[Answer], None]) -> None:
        """`hear` is called once: with the answer, or that there is none."""
        draw, clock, faults = self.random.random, self.clock, self.faults
        answered = False

        def answer(word: Answer) -> None:
            nonlocal answered
            if not answered:
                answered = True
                hear(word)

        def arrive() -> None:
            word = self._do(question, answered)
            if draw() >= faults.unanswered and not self._is_cut(who):
                clock.after(self._delay_s(), lambda: answer(word))

        clock.after(_GIVE_UP_S, lambda: answer(Unreachable("the register does not answer")))
        if draw() < faults.lost or self._is_cut(who):
            return
        clock.after(_GIVE_UP_S + draw() * 4.0 if draw() < faults.late else self._delay_s(), arrive)

    def _is_cut(self, who: str) -> bool:
        return "" in self.cut or who in self.cut

    def _delay_s(self) -> float:
        return self.random.expovariate(1.0 / self.faults.mean_delay_s)

    def _do(self, question: Question, given_up: bool) -> Answer:
        match question:
            case Campaign():
                return self._campaign(question)
            case Renew():
                if question.seat != self.seat:
                    return Deposed()
                self._renew()
                return Kept()
            case Write():
                return self._write(question, given_up)

    def _campaign(self, campaign: Campaign) -> Answer:
        if self.seat is not None and self.sighting != campaign.instead_of:
            return self.sighting
        clear = self.seat is not None
        term = unpack(self.content).term + 1 if self.content is not None else 1
        self.seat = LeaderSeat(campaign.token.encode(), term)
        self.sighting = Sighting(campaign.address, campaign.token, 0)
        self._renew()
        return Elected(self.seat, self.content, self.journal_revision, clear)

    def _renew(self) -> None:
        self._revision += 1
        self._renewals += 1
        self.sighting = replace(self.sighting, revision=self._revision)
        number, early = self._renewals, self.random.random() < self.faults.early_end
        self.clock.after(self.random.random() * _LEASE_S if early else _LEASE_S, lambda: self._end(number))

    def _end(self, renewals: int) -> None:
        if renewals == self._renewals:
            self.seat = None

    def _write(self, write: Write, given_up: bool) -> Answer:
        if write.seat != self.seat and self.fenced:
            return Deposed()
        if write.revision != self.journal_revision and given_up and self.fenced:
            return Deposed()  # it has been overtaken, and nobody tries it again with the new revision
        self._revision += 1
        self.content, self.journal_revision = write.content, self._revision
        self.wrote(unpack(write.content))
        return Written(self._revision)
