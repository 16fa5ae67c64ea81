"""Connections that are dialled in the background, for a loop or a lock that must not wait for a slow peer; and whether
what was dialled still leads to anybody.

The owner says `want` whenever it misses a connection, as often as it likes, and is told by `arrived` that there is
something to `take`. An attempt has a thread of its own, which ends with it, and never holds a lock while it dials.
"""

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from gradtide.errors import CommunicationError
from gradtide.transport.connection import Connection

__all__ = ["Dialer", "Heartbeat", "rest_s"]

T = TypeVar("T", bound=Hashable)
_RARER = 20  # who has not answered for 2 s is tried ten times a second, after 20 s once a second
_RAREST_S = 1.0
_SMALL_BYTES = 64 << 10  # more than this on its way is values, and as long as they leave somebody takes them


class Dialer(Generic[T]):
    """One attempt at a time a target, and none sooner than `again_s` after the last one began; rarer where nobody has
    answered for long, so that a client of a store that is gone for good costs next to nothing."""

    def __init__(self, dial: Callable[[T], Connection], arrived: Callable[[], None], again_s: float) -> None:
        """`dial` and `arrived` are called in the attempt's thread. `dial` raises CommunicationError where it fails."""
        self._dial, self._arrived, self._again_s = dial, arrived, again_s
        self._lock = threading.Lock()  # only for a moment: nobody else's lock is taken under it
        self._dialling: set[T] = set()
        self._reached: dict[T, Connection] = {}  # for `take`
        self._rests_until_s: dict[T, float] = {}
        self._failing_since_s: dict[T, float] = {}
        self._closed = False

    def want(self, target: T) -> None:
        """Begins to dial, unless that is under way, waits to be taken, or was tried a moment ago."""
        with self._lock:
            rests = time.monotonic() < self._rests_until_s.get(target, 0.0)
            if self._closed or rests or target in self._dialling or target in self._reached:
                return
            threading.Thread(target=self._attempt, args=(target,), name="gradtide-dial", daemon=True).start()
            self._dialling.add(target)  # if there was a thread to be had

    def rested(self) -> list[T]:
        """The targets that may be tried again, each named once: for an owner who would not ask by itself."""
        now_s = time.monotonic()
        with self._lock:
            found = [target for target, until_s in self._rests_until_s.items() if now_s >= until_s]
            for target in found:
                del self._rests_until_s[target]
        return found

    def take(self) -> list[tuple[T, Connection]]:
        """What was reached since the last time: the owner's from now on."""
        if not self._reached:
            return []
        with self._lock:
            reached, self._reached = self._reached, {}
        return list(reached.items())

    def close(self) -> None:
        """Does not wait: an attempt that is under way ends by itself, and closes what it has reached."""
        with self._lock:
            self._closed = True
            reached, self._reached = self._reached, {}
        for connection in reached.values():
            connection.close()

    def abandon(self) -> None:
        """In a process that was made by fork: nobody dials there, and the lock may be held by a thread that is not."""
        self._closed, self._lock = True, threading.Lock()
        for connection in self._reached.values():
            connection.close()
        self._reached = {}

    def _attempt(self, target: T) -> None:
        began_s, connection = time.monotonic(), None
        try:
            with suppress(CommunicationError):
                connection = self._dial(target)
        finally:
            kept = self._end(target, connection, began_s)
        if kept:
            self._arrived()
        elif connection is not None:
            connection.close()

    def _end(self, target: T, connection: Connection | None, began_s: float) -> bool:
        """Whether there is something for the owner to take."""
        with self._lock:
            self._dialling.discard(target)
            failing_s = 0.0
            if connection is None:
                failing_s = began_s - self._failing_since_s.setdefault(target, began_s)
            else:
                self._failing_since_s.pop(target, None)
            self._rests_until_s[target] = began_s + rest_s(self._again_s, failing_s)
            if connection is None or self._closed:
                return False
            self._reached[target] = connection
            return True


def rest_s(again_s: float, failing_s: float) -> float:
    """How long after an attempt began the next one may, to somebody who has not answered for so long."""
    return max(again_s, min(failing_s / _RARER, _RAREST_S))


class Heartbeat:
    """Of a connection that was dialled from here. Something between two machines may have forgotten it without a word
    to either, and kernels need not notice; so who waits asks, and a lease without any answer is the end of it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heard, self._unsent_bytes = connection.arrivals, 0
        self._quiet_since_s = self._looked_s = time.monotonic()
        self._asked = False

    def is_lost(self, now_s: float, lease_s: float) -> bool:
        """To be asked several times a lease. Time in which nobody asked is not held against the other side."""
        connection = self._connection
        if connection.closed:
            return False  # whoever closed it knows
        absent, self._looked_s = now_s - self._looked_s > lease_s / 2, now_s
        unsent = connection.unsent_bytes
        moves, self._unsent_bytes = unsent < self._unsent_bytes and self._unsent_bytes > _SMALL_BYTES, unsent
        if connection.arrivals != self._heard or moves or absent:
            self._heard, self._quiet_since_s, self._asked = connection.arrivals, now_s, False
            return False
        quiet_s = now_s - self._quiet_since_s
        if quiet_s > lease_s / 2 and not self._asked:
            self._asked = True
            with suppress(CommunicationError):  # who receives will see what is wrong
                connection.ping()
        return quiet_s > lease_s
