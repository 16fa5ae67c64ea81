"""What everything that takes time returns."""

import threading
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

    def done(self) -> bool:
        """Whether it has ended, well or badly. Never blocks."""
        return self._finished.is_set()

    def wait(self, timeout_s: float | None = None) -> T:
        """The result. Giving up after timeout_s stops nobody's work: wait again if you like."""
        if not self._finished.wait(timeout_s):
            raise CommunicationError(f"{self.what} is not done after {timeout_s:g} s; wait longer, or see who is late")
        return self.result()

    def result(self) -> T:
        """The result of what is done; raises what went wrong."""
        if not self._finished.is_set():
            raise CommunicationError(f"{self.what} is not done; wait() first")
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def finish(self, result: T) -> None:
        """For who does the work: it went well."""
        self._result = result
        self._finished.set()

    def fail(self, error: BaseException) -> None:
        """For who does the work: it did not."""
        self._error = error
        self._finished.set()
