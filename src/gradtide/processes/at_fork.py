"""What becomes of things that a process shares with nobody when it forks, as a DataLoader does for its workers.

The child has its parent's sockets but none of its threads. If it used a store's, the parent's next push would be taken
for one of the child's, which was answered already. So in the child such a thing is abandoned: it lets go of what is
open, and whoever uses it there is told what to do instead.
"""

import os
import threading
import weakref
from typing import Protocol

__all__ = ["watch_forks"]


class _Abandoned(Protocol):
    lock: threading.RLock

    def abandon(self) -> None:
        """In the child, under `lock`."""


_alive: "weakref.WeakSet[_Abandoned]" = weakref.WeakSet()
_held: list[_Abandoned] = []  # while this process forks


def watch_forks(thing: _Abandoned) -> None:
    """From now on it is abandoned in a child, whichever thread forks."""
    _alive.add(thing)


def _before() -> None:
    for thing in list(_alive):
        thing.lock.acquire()
        _held.append(thing)


def _in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _in_child() -> None:
    for thing in _held:
        thing.abandon()
    _in_parent()
    _alive.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
