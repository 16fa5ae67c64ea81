"""What a user waits for: one operation of the store, as a handle."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gradtide.errors import CommunicationError, GradtideError
from gradtide.handle import Handle
from gradtide.store.operations import Done

if TYPE_CHECKING:
    from gradtide.store.engine import Engine

__all__ = ["Pending"]

T = TypeVar("T")
_NOTHING: dict[int, Sequence[memoryview]] = {}


class Pending(Handle[T], Generic[T]):
    """An operation under way. Waiting for it does the work of receiving, so `wait` costs no switch of threads."""

    # Handle makes an Event for each; here one is made only when another thread is receiving already.
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

    def result(self) -> T:
        if not self.over:
            raise CommunicationError(f"{self.what} is not done; wait() first")
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def finish(self, result: Any) -> None:
        """By the engine, with what the session said."""
        self.report = result
        try:
            self._result = self._convert(result)
        except GradtideError as error:
            self._error = error
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.over = True
        if self.event is not None:
            self.event.set()
