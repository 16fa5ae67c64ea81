"""A worker's line to the registrar of a job on several machines: one authenticated connection, in a thread of its own.

The worker beats on it, and may go on for a lease from when it sent a beat that was answered. One that is cut off ends
itself: the others go on without it, and nobody could tell what it does. A line that breaks is dialled again meanwhile.
"""

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from gradtide.errors import AuthenticationError, CommunicationError, PeerLost
from gradtide.processes.at_fork import watch_forks
from gradtide.processes.job_protocol import Answer, Ask, LeaseAnswer, Lost, Notice, Roster, Watch, WorkerBeat
from gradtide.processes.lease import WorkerLease
from gradtide.processes.ready import can_read
from gradtide.processes.wake import WakePipe
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.keys import Credentials

__all__ = ["RegistrarLine"]

_DIAL_S = 5.0
_AGAIN_S = 0.1
_DECODER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class RegistrarLine:
    """`on_lost(lost)` is called, in the line's thread, when workers are declared dead."""

    def __init__(self, address: Address, credentials: Credentials, rank: int, incarnation: int) -> None:
        self.address, self._credentials, self._rank, self._incarnation = address, credentials, rank, incarnation
        self.on_lost: Callable[[Lost], None] = lambda lost: None
        self.lock = threading.RLock()  # of what both threads touch; also taken when this process forks
        self._news = threading.Condition(self.lock)
        self._wake = WakePipe()
        self._connection: Connection | None = None
        self._asked: Ask | None = None  # and not answered yet
        self._answers: list[Roster] = []  # to that
        self._notices: collections.deque[Notice] = collections.deque()
        self._lost: dict[int, set[int]] = {}  # who is dead, by generation
        self._lease = WorkerLease()
        self._over = threading.Event()
        self._connect()
        self._thread = threading.Thread(target=self._run, name="gradtide-registrar", daemon=True)
        self._thread.start()
        watch_forks(self)

    # --- what the worker calls ---

    def ask(self, question: Ask, timeout_s: float) -> Roster:
        """Waits until all who live have asked."""
        with self._news:
            self._asked = question
            self._answers.clear()
            self._say(question)
            self._news.wait_for(lambda: self._answers or self._over.is_set(), timeout_s)
            self._asked = None
            if self._answers:
                return self._answers[-1]
            late = f"the registrar has not said who goes on within {timeout_s:g} s; is a worker stuck?"
            raise CommunicationError("this line to the registrar was closed here" if self._over.is_set() else late)

    def notice(self) -> Notice | None:
        """The latest that was said since the last time. One whose lease has run out waits here, for as long as it may
        still learn that it is in the job: meanwhile the others may have gone on without it."""
        with self._news:
            self._news.wait_for(lambda: self._lease.is_good(time.monotonic()) or self._over.is_set(), _DIAL_S)
            found = self._notices[-1] if self._notices else None
            self._notices.clear()
        return found

    def check(self, generation: int) -> None:
        """Raises PeerLost if somebody of that generation is dead."""
        with self.lock:
            dead = sorted(self._lost.get(generation, ()))
        if dead:
            raise PeerLost(f"worker {', '.join(map(str, dead))} died while the group was forming; it is formed again")

    def close(self) -> None:
        with self._news:
            self._over.set()
            self._news.notify_all()
        self._wake.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """In a process that was made by fork, which is no worker: it must not keep the line of a dead one open."""
        self._over.set()
        if self._connection is not None:
            self._connection.close()
        self._wake.close()

    # --- the thread ---

    def _run(self) -> None:
        while not self._over.is_set():
            connection = self._connection
            things: list[Any] = [self._wake] if connection is None else [self._wake, connection]
            can_read(things, self._lease.lease_s / 10 or _AGAIN_S)
            self._wake.clear()
            if self._over.is_set():
                break
            over = self._lease.is_over(time.monotonic())  # before what has come is heard: it may have stood still
            self._move()
            if over and self._lease.is_over(time.monotonic()):
                self._end_worker()
        with self.lock:
            if self._connection is not None:
                self._connection.close()
            self._wake.close()

    def _move(self) -> None:
        try:
            with self.lock:
                if self._connection is None:
                    self._connect()
                assert self._connection is not None
                self._connection.receive()
                if self._lease.is_due(time.monotonic()):
                    self._say(WorkerBeat(self._lease.begin(time.monotonic())))
                self._connection.flush()
        except AuthenticationError:
            self._end_worker()
        except (CommunicationError, msgspec.MsgspecError):
            self._hang_up()

    def _connect(self) -> None:
        """Dials, and says again what was not answered."""
        limit_s = min(_DIAL_S, max(0.1, self._lease.until_s - time.monotonic())) if self._lease.lease_s else _DIAL_S
        line = dial(self.address, self._credentials, "worker", limit_s)
        connection = open_connection(line, f"the registrar at {self.address}")
        connection.on_messages(lambda message: self._hear(_DECODER.decode(bytes(message))), lambda: None)
        self._connection = connection
        self._say(Watch(self._rank, self._incarnation))
        self._say(WorkerBeat(self._lease.begin(time.monotonic())))
        if self._asked is not None:
            self._say(msgspec.structs.replace(self._asked, again=True))

    def _hang_up(self) -> None:
        with self.lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _say(self, message: object) -> None:
        with self.lock, contextlib.suppress(CommunicationError):  # the thread will see, and dial again
            if self._connection is not None:
                self._connection.send(msgspec.json.encode(message))

    def _hear(self, answer: Answer) -> None:
        """Under the lock."""
        match answer:
            case LeaseAnswer():
                self._lease.answered(answer.number, answer.lease_s)
            case Roster():
                self._answers.append(answer)
            case Notice():
                self._notices.append(answer)
            case Lost():
                self._lost.setdefault(answer.generation, set()).update(answer.ranks)
                self.on_lost(answer)
        self._news.notify_all()

    def _end_worker(self) -> None:
        line = (
            f"gradtide: worker {self._rank} has not reached the registrar at {self.address} for "
            f"{self._lease.lease_s:g} s; it ends, because the others go on without it\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        os._exit(1)
