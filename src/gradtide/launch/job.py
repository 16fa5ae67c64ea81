"""What becomes of a job as its workers fail and end: pure decisions, which launcher.py carries out.

The first failure matters: it is shown first and decides the exit code. A worker that merely fell because a peer did may
be heard of earlier than that peer, so one of those is believed only when no better reason turns up within a second. A
program that was refused would be refused again, so it is not started again, and no other worker goes on with it.
"""

import signal
from dataclasses import dataclass, field

from gradtide.launch.messages import Failure

__all__ = ["Action", "Again", "GoOn", "JobState", "Show", "Stop", "end_in_words"]

_CAUSE_S = 1.0
# How workers end that we have asked to, or passed a signal to: nothing to tell of.
_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOPPED = (-signal.SIGKILL, *(-one for one in _ASKED), *(128 + one for one in _ASKED))


@dataclass(frozen=True, slots=True)
class Show:
    """Show this failure."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Stop:
    """End these workers."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """Start this worker again."""

    rank: int
    incarnation: int
    restarts: int  # of the job so far, this one included


@dataclass(frozen=True, slots=True)
class GoOn:
    """Say that the job goes on without this worker."""

    rank: int
    left: int


Action = Show | Stop | Again | GoOn


@dataclass(slots=True)
class JobState:
    """State only."""

    workers: int
    needed: int
    max_restarts: int
    restarts: int = 0
    running: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # failed for good
    going: set[int] = field(default_factory=set)  # to be let go: asked to, and then gone
    incarnations: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)  # in the order heard of
    cause: Failure | None = None  # the failure that ended the job
    finished: bool = False  # one of a group has come to its end: who is started again would do it all over, alone
    signalled: int = 0  # the signal that we were asked to end with
    _suspect: Failure | None = None  # one that fell, while nobody knows of another reason
    _failing: set[int] = field(default_factory=set)  # said that they failed, and have not ended yet
    _again: set[int] = field(default_factory=set)  # of these, who will be started again

    def __post_init__(self) -> None:
        self.running = set(range(self.workers))
        self.incarnations = dict.fromkeys(self.running, 0)

    @property
    def ending(self) -> bool:
        return self.cause is not None or bool(self.signalled)

    def grow(self) -> int:
        """One more worker; returns its rank."""
        rank = len(self.incarnations)
        self.workers += 1
        self.running.add(rank)
        self.incarnations[rank] = 0
        return rank

    def let_go(self, rank: int) -> None:
        """A worker is to go; that it ends is no failure."""
        self.going.add(rank)

    @property
    def staying(self) -> list[int]:
        return sorted(self.running - self.going)

    def deadline_s(self) -> float | None:
        """When to call `later`."""
        return None if self._suspect is None or self.ending else self._suspect.at_s + _CAUSE_S

    def reported(self, failure: Failure) -> list[Action]:
        """A worker says that it failed; it has not ended yet."""
        self._failing.add(failure.rank)
        if self.ending and not failure.kind and failure.exit_code in _STOPPED:
            self.lost.add(failure.rank)
            return []
        return self._failed(failure)

    def ended(self, rank: int, status: int, at_s: float) -> list[Action]:
        """A worker is gone."""
        self.running.discard(rank)
        actions: list[Action] = []
        if rank in self._failing:
            self._failing.discard(rank)
        elif status in _STOPPED and self.ending:
            self.lost.add(rank)
        elif status:
            exit_code = status if status > 0 else 128 - status
            actions += self._failed(Failure(rank, at_s, "", end_in_words(status), exit_code=exit_code))
        if rank in self._again and not self.ending:
            self._again.discard(rank)
            self.running.add(rank)
            self.incarnations[rank] += 1
            actions.append(Again(rank, self.incarnations[rank], self.restarts))
        if not self.running and self._suspect is not None and not self.ending:
            actions += self._end(self._suspect)  # all are gone: nobody is left who could be to blame
        return actions

    def leave_out(self, rank: int) -> None:
        """A worker that was to be started again is not wanted any more: the others have come to the end."""
        self.running.discard(rank)
        self.lost.add(rank)

    def gave_up(self, failure: Failure) -> list[Action]:
        """A worker that was to be started again never will be."""
        self.running.discard(failure.rank)
        self.max_restarts = min(self.max_restarts, self.restarts)
        return self._failed(failure)

    def later(self, now_s: float) -> list[Action]:
        """The deadline has come."""
        deadline_s = self.deadline_s()
        if self._suspect is None or deadline_s is None or now_s < deadline_s:
            return []
        return self._end(self._suspect)

    def interrupted(self, number: int) -> None:
        """We were sent a signal, which all workers are sent as well."""
        self.signalled = self.signalled or number

    def exit_code(self) -> int:
        if self.cause is not None:
            return self.cause.exit_code
        return 128 + self.signalled if self.signalled and self.lost else 0

    def _failed(self, failure: Failure) -> list[Action]:
        self.failures.append(failure)
        self.lost.add(failure.rank)
        if self.ending:
            return []
        if failure.rank in self.going:
            self.lost.discard(failure.rank)
            return [Show(failure)]
        if failure.refused:
            return self._end(failure)
        if self.restarts < self.max_restarts and not self.finished:
            self.restarts += 1
            self.lost.discard(failure.rank)
            self._again.add(failure.rank)
            return [Show(failure)]
        left = self.workers - len(self.lost) - len(self.going)
        if left >= self.needed:
            return [Show(failure), GoOn(failure.rank, left)]
        if failure.fell:
            self._suspect = self._suspect or failure
            return []
        return self._end(failure)

    def _end(self, cause: Failure) -> list[Action]:
        self.cause = cause
        return [Show(cause), Stop(tuple(sorted(self.running - {cause.rank})))]


def end_in_words(status: int) -> str:
    """Of a worker: its exit code, or minus the signal that killed it."""
    if status >= 0:
        return f"ended with exit code {status}"
    names = {one.value: one.name for one in signal.Signals}
    name = names.get(-status, f"signal {-status}")
    hint = "; if nobody did that, memory may have run out (see dmesg)" if -status == signal.SIGKILL else ""
    return f"was killed by {name} (exit code {128 - status}){hint}"
