"""What every handle must do, whatever it is a handle of: one contract, run on each kind of them.

`check_handle(begin)`: `begin()` begins something that does not end by itself, and says how to let it end.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradtide.errors import CommunicationError
from gradtide.handle import Handle

__all__ = ["Begun", "check_handle"]

_LONG_S = 20.0
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Begun:
    """Something under way."""

    handle: Handle[Any]
    let_end: Callable[[], object]  # which may take a moment
    error: type[BaseException] | None = None  # what goes wrong then


class Ends:
    """Who is told of an end, and how often."""

    def __init__(self) -> None:
        self.told: list[BaseException | None] = []
        self._event = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.told.append(error)
        self._event.set()

    def wait(self) -> BaseException | None:
        assert self._event.wait(_LONG_S), "nobody was told of the end"
        return self.told[0]


def check_handle(begin: Callable[[], Begun]) -> None:
    """Everything below, in turn."""
    for check in (_while_it_is_under_way, _when_it_has_ended, _tells_without_a_waiter, _tells_all, _many_threads):
        check(begin())


def _while_it_is_under_way(begun: Begun) -> None:
    """Nothing blocks but wait() and ended(), and those as long as they were told to; then one may wait again."""
    handle = begun.handle
    assert handle.what
    for _ in range(2):
        assert not handle.done()
        assert handle.error() is None
        assert not handle.ended(0)
        assert not handle.ended(0.01)
        assert handle.what in _expect(CommunicationError, handle.result)
        assert handle.what in _expect(CommunicationError, lambda: handle.wait(0.01))
    begun.let_end()
    assert handle.ended(_LONG_S)
    _check_end(begun)


def _when_it_has_ended(begun: Begun) -> None:
    begun.let_end()
    assert handle_waits(begun)
    _check_end(begun)


def _tells_without_a_waiter(begun: Begun) -> None:
    """Nobody waits or asks, and yet who is to be told is told, once; whoever comes later is told at once."""
    ends = Ends()
    begun.handle.when_done(ends)
    assert not ends.told
    begun.let_end()
    _check_error(begun, ends.wait())
    _check_end(begun)
    assert len(ends.told) == 1


def _tells_all(begun: Begun) -> None:
    """In order, though one raises; and they may use the handle."""
    handle, first, last, seen = begun.handle, Ends(), Ends(), list[bool]()

    def raises(error: BaseException | None) -> None:
        raise ValueError("of who is told")

    reported, hook = list[Any](), threading.excepthook
    threading.excepthook = lambda report: reported.append(report.exc_value)
    try:
        handle.when_done(first)
        handle.when_done(raises)
        handle.when_done(lambda error: seen.append(handle.done() and handle.ended(0) and handle.error() is error))
        handle.when_done(last)
        begun.let_end()
        _check_error(begun, last.wait())
    finally:
        threading.excepthook = hook
    assert (len(first.told), len(last.told), seen) == (1, 1, [True])
    assert [str(error) for error in reported] == ["of who is told"]
    _expect(ValueError, lambda: handle.when_done(raises))  # at once: it is the caller's own
    _check_end(begun)


def _many_threads(begun: Begun) -> None:
    """Threads that wait, look and ask to be told while it ends: all see one end, and each is told once."""
    ends, failed, ready = [Ends() for _ in range(50 * _THREADS)], list[BaseException](), threading.Barrier(_THREADS + 1)

    def work(number: int) -> None:
        try:
            ready.wait(_LONG_S)
            for end in ends[number::_THREADS]:
                begun.handle.when_done(end)
                begun.handle.done()
            assert handle_waits(begun)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    ready.wait(_LONG_S)
    begun.let_end()
    for thread in threads:
        thread.join(_LONG_S)
        assert not thread.is_alive()
    assert not failed, failed
    for end in ends:
        _check_error(begun, end.wait())
    _check_end(begun)
    assert all(len(end.told) == 1 for end in ends)


def handle_waits(begun: Begun) -> bool:
    """Whether wait() ends as it should."""
    if begun.error is not None:
        return bool(_expect(begun.error, lambda: begun.handle.wait(_LONG_S)))
    return begun.handle.wait(_LONG_S) is begun.handle.result()


def _check_end(begun: Begun) -> None:
    """It stays ended, the same way for everybody, however often one asks."""
    handle, ends = begun.handle, Ends()
    for _ in range(2):
        assert handle.done()
        assert handle.ended(0)
        assert handle.ended()
        _check_error(begun, handle.error())
        assert handle_waits(begun)
        if begun.error is not None:
            assert _expect(begun.error, handle.result) == str(handle.error())
    handle.when_done(ends)
    assert ends.told == [handle.error()], "who asks after the end is told at once"


def _check_error(begun: Begun, error: BaseException | None) -> None:
    if begun.error is None:
        assert error is None, error
    else:
        assert isinstance(error, begun.error), error


def _expect(kind: type[BaseException], work: Callable[[], object]) -> str:
    try:
        work()
    except kind as error:
        return str(error) or kind.__name__
    raise AssertionError(f"no {kind.__name__}")
