"""One place that all coordinators of a job see, and what they ask of it: who leads, and the journal. Pure.

A register answers each question as if at one moment (it is linearizable), or not at all; what it did not answer may
have been done, or may yet be. What follows from the answers is leadership.py's to say. etcd is such a place
(etcd_register.py); a third kind of journal would be one more file that answers these questions.
"""

from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "Answer",
    "Campaign",
    "Deposed",
    "Elected",
    "Kept",
    "LeaderSeat",
    "Question",
    "Register",
    "Renew",
    "Sighting",
    "Unreachable",
    "Write",
    "Written",
]


@dataclass(frozen=True, slots=True)
class Sighting:
    """Somebody leads, or did. `revision` changes whenever he proves it."""

    leader: str  # where he is reached
    token: str  # that he campaigned with
    revision: int


@dataclass(frozen=True, slots=True)
class LeaderSeat:
    """What a leader has: nobody else's has this mark, and nothing is written without comparing it."""

    mark: bytes
    term: int
    hold: int = 0  # what the register itself knows it by


# --- questions ---


@dataclass(frozen=True, slots=True)
class Campaign:
    """May I lead? `instead_of`: of whom nothing has changed for long enough, if that is still so."""

    address: str
    token: str  # nobody else's, nor this one's at another time
    instead_of: Sighting | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """I lead: do I? All who look see that somebody has proven it."""

    seat: LeaderSeat


@dataclass(frozen=True, slots=True)
class Write:
    """The journal, if I lead, and it is as I know it or as I tried to write it."""

    seat: LeaderSeat
    revision: int
    content: bytes


Question = Campaign | Renew | Write

# --- answers ---


@dataclass(frozen=True, slots=True)
class Elected:
    """You lead, from this journal on. `clear`: the last leader has said that he leads no more, or is the one that you
    asked to follow; else nobody knows when the seat was lost."""

    seat: LeaderSeat
    content: bytes | None
    revision: int
    clear: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """You lead."""


@dataclass(frozen=True, slots=True)
class Written:
    """It is the journal now."""

    revision: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """You don't lead."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No answer: it may have been done, or may yet be."""

    why: str


Answer = Elected | Sighting | Kept | Written | Deposed | Unreachable


class Register(Protocol):
    """Asked from several threads; it takes seconds where it must."""

    def ask(self, question: Question) -> Answer:
        """Raises a GradtideError only for what will not mend by itself, such as a journal of another job."""
        ...

    def resign(self, seat: LeaderSeat) -> None:
        """Whoever had this seat answers nobody any more: the next one need not wait. As far as it can be reached."""
        ...

    def describe(self) -> str:
        """What it is called, in a user's words."""
        ...
