"""The lines of workers to the registrar of a job on several machines: one connection each, which stays.

A worker beats on it, and may go on for a lease from when it sent a beat that was answered. So what was not heard from
for a lease has stopped, wherever it is: only then does somebody else take its place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gradtide.launch.nodes.node import CLOSED, Guest
from gradtide.launch.registrar import Registrar
from gradtide.processes.job_protocol import LeaseAnswer, Question, Scale, Watch, WorkerBeat

__all__ = ["WorkerLines"]


@dataclass(slots=True)
class _Line:
    """Of one worker, as the registrar's Asker."""

    visitor: Guest
    rank: int = -1
    answered_s: float = -math.inf  # when its last beat was
    stays: bool = True

    def tell(self, message: bytes) -> None:
        self.visitor.tell(message)

    def hang_up(self) -> None:
        self.visitor.hang_up()


class WorkerLines:
    """All of them."""

    def __init__(self, registrar: Registrar, lease_s: float, clock: Callable[[], float]) -> None:
        self._registrar, self._lease_s, self._clock = registrar, lease_s, clock
        self._lines: dict[int, _Line] = {}  # by rank
        self._dead: set[int] = set()
        self._condemned: set[int] = set()
        self._incarnations: dict[int, int] = {}  # of who was started last, by rank

    def greet(self, visitor: Guest) -> None:
        line = _Line(visitor)
        visitor.patient = True  # one that is busy need not answer: its node is asked, and its own beats count
        visitor.hear = lambda message: self._hear(line, msgspec.json.decode(message, type=Question))
        visitor.lost = lambda why: self._lost(line, why)

    def _hear(self, line: _Line, question: Question) -> None:
        if isinstance(question, WorkerBeat):
            if self._lines.get(line.rank) is line and line.rank not in self._condemned:
                line.answered_s = self._clock()
                line.tell(msgspec.json.encode(LeaseAnswer(question.number, self._lease_s)))
            return
        if isinstance(question, Watch):
            if question.rank in self._dead or question.incarnation != self._incarnations.get(question.rank):
                self.refuse(line)
                return
            line.rank = question.rank
            line.visitor.name(f"worker {question.rank}")
            self._lines[question.rank] = line
        if isinstance(question, Scale) or self._lines.get(line.rank) is line:
            self._registrar.take(line, question)

    def refuse(self, line: _Line) -> None:
        """It was thought dead, and lives: it stops when its lease is over."""
        line.visitor.hear = lambda message: None

    def _lost(self, line: _Line, why: str) -> None:
        """Its worker has ended, or else will come again."""
        if why == CLOSED:
            line.answered_s = -math.inf  # by itself, so it goes on no more
        self._registrar.forget(line)

    def began(self, rank: int, incarnation: int) -> None:
        """A worker of this rank was started."""
        self._incarnations[rank] = incarnation
        self._dead.discard(rank)
        self._condemned.discard(rank)
        self._lines.pop(rank, None)

    def may_live_until_s(self, rank: int) -> float:
        """When a worker that hears nothing any more has stopped for sure."""
        line = self._lines.get(rank)
        return -math.inf if line is None else line.answered_s + self._lease_s

    def condemn(self, ranks: list[int]) -> None:
        """Their node is lost: they are to stop, wherever they are. So they hear nothing any more."""
        self._condemned.update(ranks)

    def ended(self, rank: int) -> None:
        """It is dead: if it is not, it hears nothing any more, and stops."""
        self._dead.add(rank)
        line = self._lines.pop(rank, None)
        if line is not None:
            self._registrar.forget(line)
            line.hang_up()
