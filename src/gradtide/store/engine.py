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
from dataclasses import dataclass
from typing import Any

from gradtide.errors import Closed, CommunicationError, PeerLost, PeerTimeout
from gradtide.events import Degraded, Emit, ignore
from gradtide.store.inbox import Inbox
from gradtide.store.lane import Lane
from gradtide.store.links import Link, Links
from gradtide.store.messages import Message, encode
from gradtide.store.operations import Done, Send, SessionInstruction
from gradtide.store.pending import Pending
from gradtide.store.session import Session
from gradtide.store.upkeep import Upkeep, Waker
from gradtide.transport.authenticate import Address

__all__ = ["Engine", "Start", "Timeouts"]

_LOOK_UP_S = 0.25  # how long who receives does not look at anything else
Instructions = Iterable[SessionInstruction[memoryview]]
Start = Callable[[float], tuple[int, list[SessionInstruction[memoryview]]]]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client waits before it says who is late."""

    connect_s: float = 5.0
    join_s: float = 60.0  # for the first table, and for a worker's first round
    step_s: float = 60.0
    resend_s: float = 1.0  # the first wait for a server's answer; it doubles up to eight times that


class Engine:
    """Moves bytes and time for one session."""

    def __init__(
        self,
        session: Session[memoryview],
        address: Address,
        secret: bytes,
        timeouts: Timeouts,
        emit: Emit = ignore,
    ) -> None:
        self.session, self.address, self.timeouts = session, address, timeouts
        self._emit = emit
        self._degraded = 0  # shards without a replica, as was told
        self.lock = threading.RLock()
        self.reading = threading.Lock()
        self.pending: dict[int, Pending[Any]] = {}
        self.quick: Lane | None = None  # whose push is under way without the session's knowledge
        self.handed_on: dict[int, Pending[Any]] = {}  # what of these became ordinary, for who waits for it
        self.closed = False
        self.links = Links(secret, timeouts.connect_s, self.lock, Inbox(self).attach, self._opened)
        self._followers: list[Pending[Any]] = []
        self._changed = threading.Condition(self.lock)  # the table or the decree
        self._poll, self._polled = select.poll(), dict[int, Link]()  # of who receives
        self._waker = Waker()
        self._poll.register(self._waker, select.POLLIN)
        self._upkeep = Upkeep(self, secret)
        self._upkeep.start()

    # --- for Store ---

    def wait_until_ready(self) -> None:
        """Until there is a table, and for a worker a round to be in."""
        with self.lock:
            ready = self._changed.wait_for(lambda: self.session.ready or self.session.expelled, self.timeouts.join_s)
            if self.session.expelled:
                raise PeerLost(f"the coordinator at {self.address} refuses: {self.session.expelled}")
            if not ready:
                what = "servers" if self.session.table is None else "other workers"
                raise PeerTimeout(
                    f"the coordinator at {self.address} still waits for {what} after {self.timeouts.join_s:g} s; "
                    "are they all started?"
                )

    def start(self, pending: Pending[Any], begin: Start) -> None:
        """Begins an operation; what the kernel does not take now is sent by who waits, or in the background."""
        with self.lock:
            if self.closed:
                raise Closed(f"the store at {self.address} was closed here; connect again")
            self.give_up_quick()
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

    def wait(self, pending: Pending[Any], timeout_s: float | None) -> None:
        """Until it is over; receives for everybody if nobody else does."""
        limit_s = self.timeouts.step_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        while not pending.over:
            if self.reading.acquire(blocking=False):
                try:
                    self._receive_until(pending, deadline_s)
                finally:
                    self.stop_reading()
            else:
                self._follow(pending, deadline_s)
            if not pending.over and time.monotonic() >= deadline_s:
                raise PeerTimeout(f"{self._who_is_late(pending)} did not answer {pending.what} within {limit_s:g} s")

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
        with self.lock:
            if self.closed:
                return
            with contextlib.suppress(CommunicationError):
                self.obey(self.session.leave())
            self.give_up_quick()
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
                self._waker.drain()  # there is something new to watch
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

    def _take(self, link: Link) -> None:
        try:
            link.connection.receive()
        except CommunicationError:
            self.drop(link)

    def drop(self, link: Link) -> None:
        """What the link carried goes again over the next one."""
        with self.lock:
            current = self.links.remove(link)
            self._forget(link)
            if current and not self.closed:
                self.give_up_quick()
                self.obey(self.session.lost(link.entry.name, time.monotonic()))

    def _forget(self, link: Link) -> None:
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

    def flush(self, link: Link) -> None:
        with self.lock, contextlib.suppress(CommunicationError):  # who receives will see what is wrong
            if not link.gone and link.connection.can_flush:
                link.connection.flush()

    def _opened(self, name: str) -> None:
        """A server has been dialled: what waits for it goes now, and who receives looks there too."""
        if not self.closed:
            self.give_up_quick()
            self.obey(self.session.lost(name, time.monotonic()))
            self._waker.wake()

    def hear(self, message: Message) -> None:
        """The coordinator said something."""
        with self.lock:
            self.give_up_quick()
            self.obey(self.session.hear(message, time.monotonic()))
            self._changed.notify_all()
            degraded = self.session.degraded
        if degraded != self._degraded:
            self._degraded = degraded
            self._emit(Degraded(degraded))

    def give_up_quick(self) -> None:
        """Before the session hears of anything else: a push that went the short way becomes one like any other."""
        lane, self.quick = self.quick, None
        if lane is None or lane.done:
            return
        pending = lane.as_pending()
        pending.sequence = lane.register(self.session, time.monotonic())
        self.pending[pending.sequence] = self.handed_on[pending.sequence] = pending

    def _who_is_late(self, pending: Pending[Any]) -> str:
        with self.lock:
            operation = self.session.operations.get(pending.sequence)
            table = self.session.table
            if operation is None or table is None:
                return "nobody"
            late = [
                table.servers[flight.server]
                for flight in operation.flights.values()
                if not flight.shards or not operation.unanswered.isdisjoint(flight.shards)
            ]
            if operation.round and late:
                return f"the other workers of round {operation.round}, or {late[0].name} at {late[0].address},"
            return " and ".join(f"server {server.name} at {server.address}" for server in late) or "nobody"
