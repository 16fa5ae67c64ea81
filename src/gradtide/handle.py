"""What everything that takes time returns."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from gradtide.errors import CommunicationError

__all__ = ["Handle"]

T = TypeVar("T")


class Handle(Generic[T]):
    """Something that is being done. `wait()` returns its result, or raises what went wrong."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._finished = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._told: list[Callable[[BaseException | None], None]] | None = []  # None once it is done
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether it has ended, well or badly. Never blocks."""
        return self._finished.is_set()

    def wait(self, timeout_s: float | None = None) -> T:
        """The result. Giving up after timeout_s stops nobody's work: wait again if you like."""
        if not self._finished.wait(timeout_s):
            raise CommunicationError(f"{self.what} is not done after {timeout_s:g} s; wait longer, or see who is late")
        return self.result()

    def ended(self, timeout_s: float | None = None) -> bool:
        """Waits as wait() does, but says whether it has ended and raises nothing."""
        return self._finished.wait(timeout_s)

    def error(self) -> BaseException | None:
        """What went wrong, if it has ended and something did."""
        return self._error

    def result(self) -> T:
        """The result of what is done; raises what went wrong."""
        if not self._finished.is_set():
            raise CommunicationError(f"{self.what} is not done; wait() first")
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def when_done(self, tell: Callable[[BaseException | None], None]) -> None:
        """Calls it with what went wrong, if anything: at once if this is done, else later by who does the work."""
        with self._lock:
            if self._told is not None:
                self._told.append(tell)
                return
        tell(self._error)

    def finish(self, result: T) -> None:
        """For who does the work: it went well."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """For who does the work: it did not."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._finished.set()
        with self._lock:
            told, self._told = self._told, None
        for tell in told or ():
            tell(self._error)
