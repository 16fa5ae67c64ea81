"""What can be read or written now: by poll, since select knows no descriptor above 1,023."""

import select
from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["HasDescriptor", "can_read", "can_write"]


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T", bound="HasDescriptor | int")


def can_read(things: Iterable[T], timeout_s: float | None = None) -> list[T]:
    """Those that can be read, or have ended, as soon as there is one; none after so long. None: however long."""
    return _ready(things, select.POLLIN, timeout_s)


def can_write(things: Iterable[T], timeout_s: float | None = None) -> list[T]:
    return _ready(things, select.POLLOUT, timeout_s)


def _ready(things: Iterable[T], events: int, timeout_s: float | None) -> list[T]:
    by_number = {thing if isinstance(thing, int) else thing.fileno(): thing for thing in things}
    poll = select.poll()
    for number in by_number:
        poll.register(number, events)
    found = poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
    return [by_number[number] for number, _ in found]
