"""What a user waits for: one operation of the store, as a handle."""

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gradtide.errors import (
    CommunicationError,
    NotMember,
    PeerTimeout,
    RolledBack,
    StaleGradient,
    StoreError,
    UnknownKey,
)
from gradtide.handle import Handle, Tell
from gradtide.store.client.operations import Done

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine, Start

__all__ = ["AskAgain", "Pending", "raise_if_refused"]

T = TypeVar("T")
_ERRORS: dict[str, type[StoreError]] = {
    "unknown_key": UnknownKey,
    "not_member": NotMember,
    "incarnation": NotMember,
    "stale": StaleGradient,
    "rolled_back": RolledBack,
}


class AskAgain(Exception):
    """What was asked for must be asked for in another way: `begin` does."""

    def __init__(self, begin: "Start") -> None:
        super().__init__()
        self.begin = begin


class Pending(Handle[T], Generic[T]):
    """An operation under way. Waiting for it does the work of receiving, so `wait` costs no switch of threads.

    It ends under the engine's lock. Who is told of that (`when_done`) is told by the store's background thread, under
    no lock, and may begin other operations; nobody beats and resends meanwhile, so it must not wait for them.
    """

    # Handle makes an Event, a list and a lock for each. Here an Event is made only when another thread is receiving
    # already, and the lock is the engine's: so Handle.__init__ is not called, and all that needs these is defined anew.
    _to_tell: tuple[Tell, ...] = ()

    def __init__(
        self,
        engine: "Engine",
        what: Callable[[], str],
        finish: Callable[[Done[memoryview]], T],
        targets: Callable[[int], list[memoryview]] | None = None,
    ) -> None:
        self._engine, self._describe, self._convert = engine, what, finish
        self.targets: Callable[[int], list[memoryview]] = targets or (lambda shard: [])
        self.sequence = 0
        self.over = False
        self.event: threading.Event | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self.report: Done[memoryview] | None = None  # versions, round and staleness, once it is over

    @property
    def what(self) -> str:  # type: ignore[override]
        return self._describe()

    def done(self) -> bool:
        return self.over or self._engine.poll(self)

    def wait(self, timeout_s: float | None = None) -> T:
        if not self.over:
            self._engine.wait(self, timeout_s)
        return self.result()

    def ended(self, timeout_s: float | None = None) -> bool:
        if not self.done():
            with contextlib.suppress(PeerTimeout):
                self._engine.wait(self, timeout_s)
        return self.over

    def result(self) -> T:
        if not self.over:
            raise CommunicationError(f"{self.what} is not done; wait() first")
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def when_done(self, tell: Tell) -> None:
        with self._engine.lock:
            if not self.over:
                self._to_tell = (*self._to_tell, tell)
                return self._engine.attend()
        return tell(self._error)

    def finish(self, result: Any) -> None:
        """By the engine, with what the session said."""
        self.report = result
        try:
            self._result = self._convert(result)
        except AskAgain as again:
            if self._begin_again(again):
                return
        except Exception as error:  # for who waits, not for who receives
            self._error = error
        self._end()

    def _begin_again(self, again: AskAgain) -> bool:
        try:
            self._engine.start(self, again.begin)
        except CommunicationError as error:
            self._error = error
        return self._error is None

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.over = True
        if self.event is not None:
            self.event.set()
        if self._to_tell:
            self._engine.tell_later(self._to_tell, self._error)
            self._to_tell = ()


def raise_if_refused(done: Done[memoryview]) -> None:
    """What the user is told when the store said no."""
    refused = done.refused
    if refused is not None:
        raise _ERRORS.get(refused.reason, StoreError)(refused.text or f"the store refuses: {refused.reason}")
