"""Who is lost and who is late, in a job on several hosts. Every rank judges for itself by what its lifelines tell.

A collective needs everybody: one rank that died, left too early or gave up ends it for all, at once, whatever they
wait for just then. A rank whose deadline has passed asks all others how far they are: who is behind, or does not
answer, is missing. If nobody is, the collective goes on for as long as messages arrive.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

from gradtide.collective.host.waiting import NOTICE_S, called, left_or_lost, tell_wait
from gradtide.errors import CommunicationError, Mismatch, PeerLost, PeerTimeout
from gradtide.events import ClockAligned
from gradtide.observe.clocks import ClockComparison, own_clock
from gradtide.processes.whereabouts import own_whereabouts
from gradtide.transport.lifelines import Lifelines, Word

__all__ = ["RankWatch"]

_ANSWER_S = 0.3  # a rank that lives answers within a millisecond, or when it gets a processor
_EXCHANGES = 8  # by which clocks are compared
_REASON_S = 1.0  # a wire that breaks has a reason, which is on its way
_KINDS = {"PeerLost": PeerLost, "PeerTimeout": PeerTimeout}


class RankWatch:
    """What this rank knows of the others while collectives run."""

    def __init__(self, rank: int, lines: dict[int, socket], interrupt: Callable[[], None]) -> None:
        """interrupt ends all that waits for messages, now and later."""
        self.rank, self._interrupt = rank, interrupt
        self._news = threading.Condition(threading.RLock())
        self._others = sorted(lines)
        self._entered, self._finished, self._moved = 0, 0, 0
        self._what, self._timeout_s, self._deadline = "", 0.0, 0.0  # of the collective that runs now
        self._unfinished = ""  # what this rank gave up
        self._left: dict[int, int] = {}  # who is gone: how many collectives it had finished, -1 if it did not say
        self._closed = False  # by this rank
        self._verdict: CommunicationError | None = None  # of the first rank that gave up
        self._answers: dict[int, tuple[int, int]] = {}
        self.notice_s, self._notice_at = NOTICE_S, math.inf  # the collective that runs now is told at
        self._good: set[int] = set()  # who left in good order
        self._places: dict[int, str] = {}  # where in their code others say they are
        self._progress = 0, 0.0  # messages that all together had moved, and when that was new
        self._clocks, self._asked_time = ClockComparison(_EXCHANGES), 0  # exchanges that are to come
        self._tell_clock: Callable[[ClockAligned], None] | None = None
        self._lines = Lifelines(lines, self)
        self._lines.start()

    @contextmanager
    def during(self, what: str, timeout_s: float, *, entered: bool = False) -> Iterator[None]:
        """While a collective runs. It begins when everybody has entered it, which must be within the timeout.

        entered: by enter(), already.
        """
        with self._news:
            self._entered += not entered
            self._what, self._timeout_s, self._deadline = what, timeout_s, time.monotonic() + timeout_s
            self._notice_at = time.monotonic() + self.notice_s
        try:
            self.check()
            yield
            self._finished = self._entered
        except Mismatch:  # everybody sees it, and goes on
            self._finished = self._entered
            raise
        except BaseException:
            self._unfinished = f" {what}"
            raise
        finally:
            self._what = ""

    def enter(self) -> None:
        """The short way into a collective that mostly ends at once: then finish(), else during(). What happens to other
        ranks before that is noticed there."""
        self._entered += 1

    def finish(self) -> None:
        self._finished = self._entered
        self._moved += 1

    @property
    def in_collective(self) -> bool:
        return bool(self._what)

    def remaining_s(self) -> float:
        """Until everybody must have entered."""
        return max(0.001, self._deadline - time.monotonic())

    def check(self) -> None:
        """Raises what ends the collective that runs now, if anything does. If it lasts, says who is waited for."""
        if (trouble := self._trouble()) is not None:
            raise trouble
        if self._what and time.monotonic() >= self._notice_at:
            self._notice_at = math.inf
            missing = self._ask()
            if missing and self.rank < min({*self._others} - {*missing}, default=self.rank + 1):
                self.tell(missing, self._what)

    def tell(self, missing: list[int], what: str) -> None:
        """Says that this rank waits, for whom, and where they are if they answer."""
        with self._news:
            self._places.clear()
            for rank in missing:
                self._lines.say(rank, Word.WHERE)
            self._news.wait_for(lambda: len(self._places) >= len(missing), _ANSWER_S)
            places = dict(sorted(self._places.items()))
        tell_wait(self.rank, self.notice_s, missing, what, places)

    def has_died(self, rank: int) -> bool:
        return self._left.get(rank, 0) < 0

    def check_alive(self, rank: int) -> None:
        """Raises if a rank died. One that left may have sent before what is waited for."""
        if self.has_died(rank):
            raise PeerLost(f"rank {rank} died with a message under way; see its own output, then start a new group")

    def loss_of(self, rank: int, what: str, why: str) -> CommunicationError:
        """What a message's broken link means: waits for the news."""
        with self._news:
            self._news.wait_for(lambda: self._closed or rank in self._left or self._verdict is not None, _REASON_S)
            if self._closed:
                return _closed_during(what)
            self.check_alive(rank)
            if rank in self._left:
                return PeerLost(f"rank {rank} has left the group, and there is still a {what}; let it wait for that")
            if self._verdict is not None:
                return self._verdict
        return PeerLost(f"the link to rank {rank} broke ({why}) during a {what}; see its own output for why")

    def meddling(self, rank: int, why: str) -> PeerLost:
        """What it means that something else came on a link than was sent; all ranks are told so."""
        return PeerLost(f"the link between ranks {self.rank} and {rank} was given up: {why}")

    def moved(self) -> None:
        """A message arrived or left."""
        self._moved += 1

    def may_go_on(self, waited_for: str) -> bool:
        """Whether a wait that has come to its end may last: all are there, and messages still arrive. If not, raises
        with who is missing. Outside of collectives nothing may."""
        if not self._what:
            return False
        missing = self._ask()
        self.check()
        within = f"within {self._timeout_s:g} s"
        if missing:
            raise PeerTimeout(f"{called(missing)} did not arrive at {self._what} {within}; is it stuck?")
        now, moved = time.monotonic(), self._moved + sum(moved for _, moved in self._answers.values())
        if moved != self._progress[0]:
            self._progress = moved, now
        elif now - self._progress[1] > self._timeout_s:
            raise PeerTimeout(f"{waited_for} did not go on with {self._what} {within}, though it arrived; is it stuck?")
        return True

    def reason(self) -> CommunicationError | None:
        """Why a wire broke: waits for the news."""
        with self._news:
            self._news.wait_for(lambda: self._trouble() is not None or not self._what, _REASON_S)
            return self._trouble()

    def give_up(self, error: BaseException) -> None:
        """Tells everybody that this rank takes part no more, and why."""
        kind = type(error).__name__
        text = f"{kind} {error}"
        if kind not in _KINDS:
            text = f"PeerLost rank {self.rank} gave up{self._unfinished} ({text.strip()[:500]}); see its own output"
        self._lines.say_all(Word.BROKEN, text=text)
        with self._news:  # for this rank's other threads, whose links end now
            self._judge(text)
            self._news.notify_all()
        self._interrupt()

    def lose(self, rank: int) -> None:
        """Somebody who knows says that this rank is dead."""
        self._lines.lose(rank)

    def close(self, *, in_good_order: bool) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._lines.say_all(Word.BYE, self._finished, in_good_order)
        self._lines.close()

    def compare_clocks(self, tell: Callable[[ClockAligned], None]) -> None:
        """With that of rank 0, now and every half minute; `tell` is called in the lifelines' thread."""
        if self.rank == 0:
            tell(ClockAligned(own_clock(), own_clock(), 0.0, 0.0))
        else:
            self._tell_clock = tell
            self._ask_time()

    def heard_nothing(self) -> None:
        if self._tell_clock is not None:
            self._ask_time()

    def _ask_time(self) -> None:
        self._asked_time = _EXCHANGES
        self._lines.say(0, Word.CLOCK, time.monotonic_ns())

    def _hear_time(self, asked_ns: int, theirs_ns: int, clock: str) -> None:
        """Rank 0 says what time it is there."""
        found = self._clocks.add(clock, asked_ns / 1e9, theirs_ns / 1e9, time.monotonic())
        if found is not None and self._tell_clock is not None:
            self._tell_clock(found)
        self._asked_time -= 1
        if self._asked_time and clock != own_clock():
            self._lines.say(0, Word.CLOCK, time.monotonic_ns())

    def heard(self, rank: int, word: Word, first: int, second: int, text: str) -> None:
        """In the lifelines' thread."""
        if word == Word.CLOCK:
            self._lines.say(rank, Word.TIME, first, time.monotonic_ns(), own_clock())
            return
        if word == Word.TIME:
            self._hear_time(first, second, text)
            return
        if word == Word.ASK:
            self._lines.say(rank, Word.ANSWER, self._entered, self._moved)
            return
        if word == Word.WHERE:
            self._lines.say(rank, Word.HERE, text=own_whereabouts())
            return
        with self._news:
            if word == Word.ANSWER:
                self._answers[rank] = first, second
            elif word == Word.HERE:
                self._places[rank] = text
            elif word == Word.BYE:
                self._left[rank] = first
                self._good |= {rank} if second else set()
            elif word == Word.GONE:
                self._left.setdefault(rank, -1)
            elif word == Word.BROKEN:
                self._judge(text)
            self._news.notify_all()
            trouble = self._trouble()
        if trouble is not None:
            self._interrupt()

    def _judge(self, text: str) -> None:
        if self._verdict is None:
            kind, _, why = text.partition(" ")
            self._verdict = _KINDS.get(kind, PeerLost)(why)

    def _trouble(self) -> CommunicationError | None:
        with self._news:
            if not self._what:
                return None
            if self._closed:
                return _closed_during(self._what)
            lost = sorted(rank for rank, finished in self._left.items() if finished < self._entered)
            if lost and self._verdict is None:
                return left_or_lost(self.rank, lost, [rank for rank in lost if rank in self._good], self._what)
            return self._verdict

    def _ask(self) -> list[int]:
        """Who is behind this rank, or does not say."""
        with self._news:
            self._answers.clear()
            asked = [rank for rank in self._others if rank not in self._left]
            for rank in asked:
                self._lines.say(rank, Word.ASK)
            self._news.wait_for(lambda: len(self._answers) >= len(asked) or self._trouble() is not None, _ANSWER_S)
            return [rank for rank in asked if self._answers.get(rank, (-1, 0))[0] < self._entered]


def _closed_during(what: str) -> CommunicationError:
    return CommunicationError(f"the group was closed during {what}; wait for what you ask for")
