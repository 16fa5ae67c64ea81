"""Work that must happen in order, now or in the background."""

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from gradtide.handle import Handle

__all__ = ["OrderedQueue"]

T = TypeVar("T")
_Job = Callable[[], None] | None


class OrderedQueue:
    """Runs one thing at a time, in the order asked for. What is waited for runs in the caller's thread if it can.

    What is asked for while something of this lane runs, by what runs or by who is told of its end (handle.when_done),
    runs at once, before anything that waits: whatever the other threads do meanwhile, every rank has the same order.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._count = threading.Lock()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._last: threading.Thread | None = None  # that was told to end
        self._ident = 0  # of the thread

    def enter(self) -> bool:
        """Whether the caller may run something right now; if so it must leave()."""
        if self._waiting and not self.inside():
            return False
        return self._turn.acquire(False)  # by place: a keyword costs 150 ns

    def inside(self) -> bool:
        """Whether the caller is run by this lane in the background."""
        return threading.get_ident() == self._ident

    def leave(self) -> None:
        self._turn.release()

    def run(self, what: str, work: Callable[[], T]) -> T:
        if not self.enter():
            return self.submit(what, work).wait()
        try:
            return work()
        finally:
            self.leave()

    def submit(self, what: str, work: Callable[[], T]) -> Handle[T]:
        handle: Handle[T] = Handle(what)

        def job() -> None:
            with self._turn:
                self._ident = threading.get_ident()
                try:
                    result = work()
                except BaseException as error:
                    self._one_less()
                    handle.fail(error)
                else:
                    self._one_less()
                    handle.finish(result)

        with self._count:
            self._waiting += 1
            self._jobs.put(job)
            if self._thread is None:
                # A daemon: a rank that is stuck in the background must not keep its process from ending.
                self._thread = threading.Thread(target=_work, args=(self._jobs,), name="gradtide-lane", daemon=True)
                self._thread.start()
                weakref.finalize(self, self._jobs.put, None)
        return handle

    def help(self, handle: Handle[Any]) -> None:
        """Lets what waits run here until the handle is done, if the caller is run by this lane: nobody else would."""
        while self.inside() and not handle.done() and not self._jobs.empty():
            job = self._jobs.get()
            if job is None:  # it is being closed
                return self._jobs.put(None)
            job()
        return None

    def _one_less(self) -> None:
        with self._count:
            self._waiting -= 1

    def close(self, timeout_s: float) -> None:
        """Lets what was asked for end, then the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._last, self._thread = self._thread, None
            self.join(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Waits for a thread that was closed before its work could end."""
        if self._last is not None and self._last is not threading.current_thread():
            self._last.join(timeout_s)


def _work(jobs: "queue.SimpleQueue[_Job]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it refers to, the group perhaps, may go now
