"""The shell around session.py: a client's sockets, threads and clock.

Who waits for an answer receives it himself: no other thread is woken for it. Of several that wait, one receives for all
and hands that duty on when it leaves. A background thread (upkeep.py) beats, resends, and moves bytes while nobody
waits. Two locks: `lock` guards the session and everything that is sent; `reading` is held by who receives, without
`lock` while nothing is there. What is called when something arrives (inbox.py) takes `lock` itself. Nobody dials under
a lock.
"""

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from gradtide.errors import Closed, CommunicationError, PeerLost, PeerTimeout
from gradtide.events import Degraded, Emit, ignore
from gradtide.handle import Tell
from gradtide.observe.clocks import ClockComparison
from gradtide.processes.at_fork import watch_forks
from gradtide.processes.wake import WakePipe
from gradtide.store.client.fast import ClientFastPath
from gradtide.store.client.inbox import Inbox
from gradtide.store.client.links import Links, ServerLink
from gradtide.store.client.operations import Done, Send, SessionInstruction
from gradtide.store.client.pending import Pending
from gradtide.store.client.session import Session
from gradtide.store.client.upkeep import Upkeep
from gradtide.store.client.waiting import StoreWait
from gradtide.store.wire.coordinators import Coordinators
from gradtide.store.wire.messages import Message, Welcome, encode
from gradtide.timeouts import Timeouts
from gradtide.transport.keys import Credentials

__all__ = ["Engine", "Start", "Timeouts"]

_LOOK_UP_S = 0.25  # how long who receives does not look at anything else
_LOOK_AROUND_S = 0.5  # how long who waits does not ask whether those who must answer are there
Instructions = Iterable[SessionInstruction[memoryview]]
Start = Callable[[float], tuple[int, list[SessionInstruction[memoryview]]]]


class Turn:
    """The session, for one thread at a time to tell it something: `with engine.turn as session`.

    It is `lock`, and what went the fast path without the session's knowledge is made known to it first.
    """

    def __init__(self, engine: "Engine") -> None:
        self._lock, self._session, self._leave = engine.lock, engine.session, engine.fast.leave

    def __enter__(self) -> Session[memoryview]:
        self._lock.acquire()
        self._leave()
        return self._session

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Engine:
    """Moves bytes and time for one session."""

    def __init__(
        self,
        session: Session[memoryview],
        address: Coordinators,
        credentials: Credentials,
        timeouts: Timeouts,
        emit: Emit = ignore,
    ) -> None:
        self.session, self.address, self.timeouts = session, address, timeouts
        self._emit = emit
        self._degraded = 0  # shards without a replica, as was told
        self._clocks = ClockComparison()
        self.lock = threading.RLock()
        self.reading = threading.Lock()
        self.pending: dict[int, Pending[Any]] = {}
        self.fast = ClientFastPath(self)
        self.turn = Turn(self)
        self.closed, self._why_closed = False, f"the store at {address} was closed here; connect again"
        self.links = Links(credentials, timeouts.connect_s, self.lock, Inbox(self).attach, self._opened)
        self.dropped = False  # its Store is garbage: the background thread closes this when all is answered
        self._died = False  # without having been closed
        self._followers: list[Pending[Any]] = []
        self._changed = threading.Condition(self.lock)  # the table or the decree
        self._poll, self._polled = select.poll(), dict[int, ServerLink]()  # of who receives
        self._upkeep = Upkeep(self, credentials)  # dials the coordinator: it raises where nobody listens
        self._waker = WakePipe()
        self._poll.register(self._waker, select.POLLIN)
        self._upkeep.start()
        watch_forks(self)

    # --- for Store ---

    def wait_until_ready(self) -> None:
        """Until there is a table, and for a worker a round to be in."""
        with self.lock:
            limit_s = self.timeouts.join_s
            self._changed.wait_for(lambda: self._settled(self.session.table is not None), limit_s)
            if self.session.rival is not None:
                limit_s += self.session.rival.left_s
                self._changed.wait_for(lambda: self._settled(self.session.table is not None), limit_s)
            if not self._settled(self.session.table is None):  # there are servers: the other workers may take longer
                limit_s = max(limit_s, self.timeouts.step_s)
                self._changed.wait_for(lambda: self._settled(False), limit_s)
            if self.session.expelled:
                raise PeerLost(f"the coordinator at {self.address} refuses: {self.session.expelled}")
            if not self.session.ready:
                if self.session.rival is not None:
                    raise PeerTimeout(
                        f"the coordinator at {self.address} still takes {self.session.rival.name} for worker "
                        f"{self.session.worker} after {limit_s:g} s; end that process, or choose another number"
                    )
                if self.session.table is None and self.address.trouble:
                    raise PeerTimeout(
                        f"no coordinator at {self.address} leads after {limit_s:g} s: {self.address.trouble}"
                    )
                what = "servers" if self.session.table is None else "other workers"
                raise PeerTimeout(
                    f"the coordinator at {self.address} still waits for {what} after {limit_s:g} s; "
                    "are they all started?"
                )

    def wait_for_word(self, heard: Callable[[], bool], timeout_s: float) -> bool:
        """Until the coordinator has said something, or this is closed; whether it has."""
        with self.lock:
            self._changed.wait_for(lambda: heard() or self.closed, timeout_s)
            return heard()

    def _settled(self, enough: bool) -> bool:
        return bool(self.session.ready or self.session.expelled) or enough

    @property
    def coordinator_is_there(self) -> bool:
        return self._upkeep.connected

    def start(self, pending: Pending[Any], begin: Start) -> None:
        """Begins an operation; what the kernel does not take now is sent by who waits, or in the background."""
        if not self.session.ready and not self.closed:  # a worker that was struck off is about to be in again
            self.wait_until_ready()
        with self.turn:
            if self.closed:
                raise Closed(self._why_closed)
            sequence, instructions = begin(time.monotonic())
            pending.sequence = sequence
            self.pending[sequence] = pending
            self.obey(instructions)

    def leave_to_background(self) -> None:
        """Nobody waits just now: somebody else must send what is left."""
        with self.lock:
            left = any(link.connection.can_flush for link in self.links.all())
        if left:
            self._upkeep.wake()

    def attend(self) -> None:
        """Under `lock`: somebody is to be told of an end that nobody may wait for, so look for answers now."""
        self._upkeep.wake()

    def tell_later(self, told: tuple[Tell, ...], error: BaseException | None) -> None:
        """Under `lock`: the background thread tells them, under no lock."""
        self._upkeep.tell_later(told, error)

    def wait(self, pending: Pending[Any], timeout_s: float | None) -> None:
        """Until it is over; receives for everybody if nobody else does."""
        limit_s = self.timeouts.step_s if timeout_s is None else timeout_s
        began_s, wait = time.monotonic(), None
        deadline_s = began_s + limit_s
        while not pending.over:
            until_s = min(deadline_s, time.monotonic() + _LOOK_AROUND_S)
            if self.reading.acquire(blocking=False):
                try:
                    self._receive_until(pending, until_s)
                finally:
                    self.stop_reading()
            else:
                self._follow(pending, until_s)
            if not pending.over:
                wait = wait or StoreWait(self, pending, began_s, limit_s)
                wait.look_around(time.monotonic())

    def poll(self, pending: Pending[Any]) -> bool:
        """Whether it is over; takes what is there, without waiting."""
        if not pending.over and self.reading.acquire(blocking=False):
            try:
                self.receive_ready(0.0)
            finally:
                self.stop_reading()
        return pending.over

    def close(self) -> None:
        """Leaves; whatever is still open fails with Closed."""
        with self.turn as session:
            if self.closed and not self._died:
                return
            self._died = False
            with contextlib.suppress(CommunicationError):
                self.obey(session.leave())
            self.closed = True
            for pending in self.pending.values():
                pending.fail(Closed(f"the store at {self.address} was closed here before this was done"))
            self.pending.clear()
            self._changed.notify_all()
        self._waker.wake()
        self._upkeep.stop()
        with self.reading, self.lock:
            self.links.close()
            self._upkeep.close()
            self._waker.close()

    def let_go(self) -> None:
        """Nobody has the Store any more. Called by the garbage collector, so under whichever locks: takes none."""
        self.dropped = True

    def die(self, error: BaseException) -> None:
        """The background thread can't go on, so nothing would be sent again: whoever waits, or comes, is told why."""
        with self.lock:
            self.closed = self._died = True
            self._why_closed = f"the store at {self.address} can't be used any more: {type(error).__name__}: {error}"
            for pending in self.pending.values():
                pending.fail(Closed(self._why_closed))
            self.pending.clear()
            self._changed.notify_all()
        self._waker.wake()

    def abandon(self) -> None:
        """Under `lock`, in a process that was made by fork: all that is open belongs to the one that made it."""
        self.closed, self.reading = True, threading.Lock()
        self._why_closed = (
            f"this process was forked from one that uses the store at {self.address}, and can't use that one's "
            "connections; connect again here"
        )
        self._waker.close()
        self._upkeep.abandon()
        self.links.abandon()
        self.fast.lane = None
        for pending in self.pending.values():
            pending.fail(Closed(self._why_closed))
        self.pending.clear()

    # --- receiving: by who holds `reading` ---

    def _receive_until(self, pending: Pending[Any], deadline_s: float) -> None:
        while not pending.over:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self.receive_ready(left_s if left_s < _LOOK_UP_S else _LOOK_UP_S)

    def receive_ready(self, timeout_s: float) -> None:
        """Sends and receives on every link where that is possible, as soon as it is possible on one."""
        self._watch()
        for number, events in self._poll.poll(timeout_s * 1000):
            link = self._polled.get(number)
            if link is None:
                self._waker.clear()  # there is something new to watch
                continue
            if events & select.POLLOUT:
                self.flush(link)
            if events & ~select.POLLOUT:
                self._take(link)

    def _watch(self) -> None:
        """Brings what is polled up to date."""
        polled = self._polled
        with self.lock:
            links = self.links.all()
            for link in self.links.take_retired():
                self._forget(link)
            for link in links:
                number, sending = link.connection.fileno(), link.connection.can_flush
                if number not in polled or sending != link.sending:
                    polled[number], link.sending = link, sending
                    self._poll.register(number, select.POLLIN | (select.POLLOUT if sending else 0))

    def _take(self, link: ServerLink) -> None:
        try:
            link.connection.receive()
        except CommunicationError:
            self.drop(link)

    def drop(self, link: ServerLink) -> None:
        """What the link carried goes again over the next one."""
        with self.turn as session:
            current = self.links.remove(link)
            self._forget(link)
            if current and not self.closed:
                same = session.table is not None and link.entry in session.table.servers
                self.obey(session.lost(link.entry.name, time.monotonic(), hung_up=same))

    def _forget(self, link: ServerLink) -> None:
        number = link.connection.fileno()
        if self._polled.get(number) is link:
            del self._polled[number]
            self._poll.unregister(number)
        link.connection.close()

    def stop_reading(self) -> None:
        """Hands the duty to receive on to somebody who waits."""
        self.reading.release()
        if self._followers:
            with self.lock:
                for follower in self._followers:
                    if not follower.over and follower.event is not None:
                        follower.event.set()
                        break

    def _follow(self, pending: Pending[Any], deadline_s: float) -> None:
        """Somebody else receives: wait until it is over, or until that duty is handed on."""
        with self.lock:
            if pending.event is None:
                pending.event = threading.Event()
            pending.event.clear()
            if pending.over or not self.reading.locked():
                return
            self._followers.append(pending)
        pending.event.wait(max(0.0, min(_LOOK_UP_S, deadline_s - time.monotonic())))
        with self.lock:
            self._followers.remove(pending)

    # --- sending and telling: under `lock` ---

    def obey(self, instructions: Instructions) -> None:
        """Does what the session wants done."""
        for instruction in instructions:
            if isinstance(instruction, Send):
                self._send(instruction)
            elif isinstance(instruction, Done):
                pending = self.pending.pop(instruction.sequence, None)
                if pending is not None:
                    pending.finish(instruction)
            else:
                self._upkeep.tell(instruction.message)

    def _send(self, instruction: Send[memoryview]) -> None:
        link = self.links.to(instruction.server)
        if link is None:
            return  # it is sent when that server has been dialled
        values = instruction.values
        try:
            link.connection.send(encode(instruction.message), values, sum(map(len, values)))
        except CommunicationError:
            link.connection.shut()  # who receives will see the end, and drop it

    def flush(self, link: ServerLink) -> None:
        with self.lock, contextlib.suppress(CommunicationError):  # who receives will see what is wrong
            if not link.gone and link.connection.can_flush:
                link.connection.flush()

    def _opened(self, name: str) -> None:
        """A server has been dialled: what waits for it goes now, and who receives looks there too."""
        with self.turn as session:
            if not self.closed:
                self.obey(session.lost(name, time.monotonic()))
                self._waker.wake()

    def hear(self, message: Message) -> None:
        """The coordinator said something."""
        now_s = time.monotonic()
        with self.turn as session:
            self.obey(session.hear(message, now_s))
            self._changed.notify_all()
            degraded = session.degraded
        if isinstance(message, Welcome) and message.clock:
            found = self._clocks.add(message.clock, message.clock_s, message.at_s, now_s)
            if found is not None:
                self._emit(found)
        if degraded != self._degraded:
            self._degraded = degraded
            self._emit(Degraded(degraded))
