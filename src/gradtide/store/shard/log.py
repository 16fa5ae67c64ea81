"""The log of a primary: what its replicas must do too, who has done it, and the answers that wait for them. Pure.

Every event of a shard that changes something is one entry. An answer leaves when everybody in `required` (the replicas
that are in sync) has the entries that it depends on; so what is acknowledged, and what is read, survives the primary.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec.structs import replace

from gradtide.store.rules.arithmetic import Arithmetic
from gradtide.store.shard.shard_events import Answer
from gradtide.store.wire.layouts import ITEM_BYTES
from gradtide.store.wire.messages import RETRYABLE, Noted, Pushed, Refused, Slot, Step, Version

__all__ = ["Entry", "Follower", "Log"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """What one event changed: steps, and the values that some of them need."""

    previous: Version
    position: Version
    version: Version
    steps: tuple[Step, ...]
    values: tuple[V, ...]
    slots: tuple[Slot, ...]

    @property
    def size_bytes(self) -> int:
        return sum(slot.count * ITEM_BYTES[slot.dtype] for slot in self.slots)


@dataclass(slots=True)
class Follower:
    """A replica, as its primary sees it."""

    acked: int | None = None  # the number of the last entry that it has; None: not known
    differs: bool = False  # it has none of this, or another past: it needs a snapshot
    basis: int | None = None  # the entry up to which a snapshot that is on its way goes
    heard_s: float = 0.0  # when it last got further, or was last written to
    silent_since_s: float | None = None  # since when it owes an answer

    @property
    def streams(self) -> bool:
        """Can entries be sent to it as they are made?"""
        return self.acked is not None or self.basis is not None

    @property
    def needs_after(self) -> int | None:
        """The number after which it may still need entries; None: it needs a snapshot first."""
        return self.acked if self.acked is not None else self.basis


@dataclass(slots=True)
class _Held(Generic[V]):
    number: int
    answer: Answer[V]
    copied: bool = False


@dataclass(slots=True)
class Log(Generic[V]):
    """Of one shard."""

    epoch: int
    position: Version
    arithmetic: Arithmetic[V]
    lasting: bool = True  # False: of a store without replicas, while the shard moves
    followers: dict[str, Follower] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    confirmed: int = 0  # every answer up to this entry has left
    entries: deque[Entry[V]] = field(default_factory=deque)  # what some follower may still need
    fresh: list[Entry[V]] = field(default_factory=list)  # what nobody was sent yet
    _steps: list[Step] = field(default_factory=list)
    _values: list[V] = field(default_factory=list)
    _held: deque[_Held[V]] = field(default_factory=deque)

    def lag(self) -> dict[str, int]:
        """How many entries each follower has not confirmed."""
        tip = self.position.sequence
        return {name: tip - (follower.acked or 0) for name, follower in self.followers.items()}

    # --- while an event is handled ---

    def before_change(self) -> None:
        """Values change now: answers that wait must keep what they were going to say."""
        for held in self._held:
            if held.answer.values and not held.copied:
                answer = held.answer
                held.answer = Answer(answer.client, answer.message, tuple(map(self.arithmetic.copy, answer.values)))
                held.copied = True

    def note(self, step: Step, value: V | None = None) -> None:
        """A step of the entry in the making."""
        self._steps.append(step)
        if value is not None:
            if self._held:
                self.before_change()
            self._values.append(value)

    def seal(self, version: Version) -> Version:
        """The event is over; returns the position of the log."""
        if self._steps:
            position = Version(self.epoch, self.position.sequence + 1)
            slots = tuple(map(self.arithmetic.slot, self._values))
            entry = Entry(self.position, position, version, tuple(self._steps), tuple(self._values), slots)
            self._steps.clear()
            self._values.clear()
            self.position = position
            if self.followers:
                self.entries.append(entry)
                self.fresh.append(entry)
            self._advance()
        return self.position

    def hold(self, answers: Iterable[Answer[V]]) -> list[Answer[V]]:
        """What of these can be said now; the rest waits for the replicas."""
        number, out = self.position.sequence, []
        for answer in answers:
            message = answer.message
            if isinstance(message, Noted) or (isinstance(message, Refused) and message.reason in RETRYABLE):
                out.append(answer)
            elif self.is_confirmed(number):
                out.append(self._mark(answer))
            else:
                self._held.append(_Held(number, answer))
        return out

    def is_confirmed(self, number: int) -> bool:
        return number <= self.confirmed and not self.unknown

    @property
    def unknown(self) -> bool:
        """Is there a required follower whose position is not known? Then nothing at all can be said."""
        return any(self.followers[name].acked is None for name in self.required)

    @property
    def waiting(self) -> int:
        return len(self._held)

    # --- followers ---

    def follow(
        self, epoch: int, names: Iterable[str], required: frozenset[str], same: frozenset[str] = frozenset()
    ) -> None:
        """A new table: who follows from now on, and whose word is needed.

        What was known of a follower is still true if it is in sync, for nobody else can have put it there; and of one
        that is joining if it is the same process and nobody else was primary since (`same`).
        """
        self.epoch, self.required = epoch, required
        known = self.followers
        self.followers = {}
        for name in sorted(names):
            follower = known.get(name) if name in required or name in same else None
            if follower is not None and name not in required and follower.basis is not None:
                follower.basis, follower.differs = None, True  # a snapshot of the epoch before is not taken any more
            self.followers[name] = follower or Follower()
        if not self.followers:
            self.entries.clear()

    def require(self, name: str) -> None:
        """From now on nothing is acknowledged without this follower."""
        self.required = self.required | {name}

    def is_close(self, name: str, entries: int) -> bool:
        """Does a follower keep up, but for the last few entries?"""
        follower = self.followers.get(name)
        return (
            follower is not None and follower.acked is not None and self.position.sequence - follower.acked <= entries
        )

    def has_caught_up(self, name: str) -> bool:
        """Does a follower have everything that was ever acknowledged?"""
        follower = self.followers.get(name)
        return follower is not None and follower.acked is not None and follower.acked >= self.confirmed

    def find(self, position: Version) -> bool:
        """Is this a position of the log as far back as it is kept?"""
        base = self._base
        if position.sequence == base.sequence:
            return position == base
        first = base.sequence + 1
        index = position.sequence - first
        return 0 <= index < len(self.entries) and self.entries[index].position == position

    @property
    def _base(self) -> Version:
        """The position before the first entry that is kept."""
        return self.entries[0].previous if self.entries else self.position

    @property
    def kept_bytes(self) -> int:
        """Of the entries that are kept for followers."""
        return sum(entry.size_bytes for entry in self.entries)

    def after(self, number: int) -> list[Entry[V]]:
        """The entries after a number."""
        return [entry for entry in self.entries if entry.position.sequence > number]

    def confirm(self, name: str, position: Version, now_s: float) -> None:
        """A follower says how far it is; `release` then gives what can be said."""
        follower = self.followers.get(name)
        if follower is None:
            return
        if not self.find(position):
            if follower.acked is None:
                follower.differs = follower.differs or follower.basis is None
            elif position.sequence >= self._base.sequence:  # else an old word that was overtaken
                self.restart(name)
            return
        if follower.acked is None or position.sequence > follower.acked:
            follower.acked, follower.differs, follower.heard_s = position.sequence, False, now_s
            follower.basis = None
            follower.silent_since_s = now_s if follower.acked < self.position.sequence else None
        self._advance()

    def release(self) -> list[Answer[V]]:
        """The answers that waited for what is confirmed now."""
        out = []
        while self._held and self.is_confirmed(self._held[0].number):
            out.append(self._mark(self._held.popleft().answer))
        return out

    def advance(self) -> list[Answer[V]]:
        """Who is required has changed: what can be said now?"""
        self._advance()
        return self.release()

    def restart(self, name: str) -> None:
        """A follower lags too far behind to be kept for: it will need a snapshot."""
        follower = self.followers[name]
        follower.acked, follower.basis, follower.differs = None, None, True
        self._trim()

    def _advance(self) -> None:
        if not self.unknown:
            tip = self.position.sequence
            acked = [self.followers[name].acked or 0 for name in self.required]
            self.confirmed = max(self.confirmed, min(acked, default=tip))
        self._trim()

    def _trim(self) -> None:
        needs = [follower.needs_after for follower in self.followers.values()]
        known = [number for number in needs if number is not None]
        least = min(known, default=self.position.sequence)
        while self.entries and self.entries[0].position.sequence <= least:
            self.entries.popleft()

    def _mark(self, answer: Answer[V]) -> Answer[V]:
        if self.required and self.lasting and isinstance(answer.message, Pushed):
            return Answer(answer.client, replace(answer.message, replicated=True), answer.values)
        return answer
