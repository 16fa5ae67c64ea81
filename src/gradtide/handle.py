"""What everything that takes time returns. tests/check_handle.py is the contract of every kind of handle."""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, cast

from gradtide.errors import CommunicationError

__all__ = ["Handle", "Tell", "tell_all"]

T = TypeVar("T")
Tell = Callable[[BaseException | None], None]


class Handle(Generic[T]):
    """Something that is being done. `wait()` returns its result, or raises what went wrong."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._finished = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._told: list[Tell] = []
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

    def when_done(self, tell: Tell) -> None:
        """Calls it once with what went wrong, if anything: at once if this is done, else later by who does the work.

        Nobody has to wait() for that. One that raises is reported as what goes wrong in a thread is.
        """
        with self._lock:
            if not self._finished.is_set():
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
        with self._lock:
            self._finished.set()
            told, self._told = self._told, []
        tell_all(told, self._error)


def tell_all(told: Iterable[Tell], error: BaseException | None) -> None:
    """One that raises keeps neither the others from being told nor the work of this thread from going on."""
    for tell in told:
        try:
            tell(error)
        except Exception:
            report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            threading.excepthook(report)
