"""The shell around session.py: a client's sockets, threads and clock.

Who waits for an answer receives it himself: no other thread is woken for it. Of several that wait, one receives for all
and hands that duty on when it leaves. A background thread beats, resends, and moves bytes while nobody waits.
Two locks: `_lock` guards the session and everything that is sent; `_reading` is held by who receives, without `_lock`
while nothing is there. Callbacks of a connection take `_lock` themselves.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gradtide.errors import Closed, CommunicationError, FrameError, PeerLost, PeerTimeout
from gradtide.events import Degraded, Emit, ignore
from gradtide.store.layouts import Layout
from gradtide.store.messages import (
    Initialised,
    Listed,
    Message,
    Noted,
    Pulled,
    Pushed,
    Refused,
    Reply,
    ServerEntry,
    decode,
    encode,
)
from gradtide.store.operations import Done, Send, SessionInstruction, TellCoordinator
from gradtide.store.pending import Pending
from gradtide.store.session import Session
from gradtide.transport.authenticate import Address, dial, parse_address
from gradtide.transport.connection import Connection
from gradtide.transport.service import LOOK_AGAIN_S

__all__ = ["Engine", "Quick", "Start", "Timeouts"]

_TICK_S = 0.05
_RECEIVE_S = 0.25
_DIAL_AGAIN_S = 0.05
Instructions = Iterable[SessionInstruction[memoryview]]
Start = Callable[[float], tuple[int, list[SessionInstruction[memoryview]]]]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client waits before it says who is late."""

    connect_s: float = 5.0
    join_s: float = 60.0  # for the first table, and for a worker's first round
    step_s: float = 60.0
    resend_s: float = 1.0  # the first wait for a server's answer; it doubles up to eight times that


class _Link:
    """One server's connection, and what is arriving on it."""

    def __init__(self, entry: ServerEntry, connection: Connection) -> None:
        self.entry, self.connection = entry, connection
        self.reply: Reply | None = None
        self.targets: list[memoryview] = []


class Quick:
    """A push_pull of one piece, sent while nothing else was under way, before the session knows of it."""

    __slots__ = ("done", "layout", "make_pending", "sequence", "target", "values", "weight")

    def __init__(
        self,
        layout: Layout,
        values: list[memoryview],
        target: memoryview,
        weight: float | None,
        make_pending: Callable[[], Pending[Any]],
    ) -> None:
        self.layout, self.values, self.target, self.weight = layout, values, target, weight
        self.make_pending = make_pending
        self.sequence = 0
        self.done = False


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
        self._secret = secret
        self.lock = self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._pending: dict[int, Pending[Any]] = {}
        self._handed_on: dict[int, Pending[Any]] = {}  # quick pushes that became ordinary, for who waits for them
        self._followers: list[Pending[Any]] = []
        self._links: dict[str, _Link] = {}
        self._retired: list[Connection] = []  # of servers that were started again
        self._quick: Quick | None = None
        self._unreachable: dict[str, float] = {}  # server -> when to try again
        self._changed = threading.Condition(self._lock)  # the table or the decree
        self._coordinator: Connection | None = None
        self._closed = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._dial_coordinator()
        self._thread = threading.Thread(target=self._run, name="gradtide-store", daemon=True)
        self._thread.start()

    # --- for Store ---

    def wait_until_ready(self) -> None:
        """Until there is a table, and for a worker a round to be in."""
        with self._lock:
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
        with self._lock:
            if self._closed:
                raise Closed(f"the store at {self.address} was closed here; connect again")
            self._give_up_quick()
            sequence, instructions = begin(time.monotonic())
            pending.sequence = sequence
            self._pending[sequence] = pending
            self._obey(instructions)

    def quick(self, quick: Quick) -> Pending[Any] | None:
        """Sends and receives at once, or falls back: then the pending operation is returned, for waiting."""
        if self._reading.acquire(blocking=False):
            try:
                with self._lock:
                    link = self._send_quick(quick)
                if link is not None:
                    self._receive_quick(quick, link)
            finally:
                self._stop_reading()
        if quick.done:
            return None
        with self._lock:
            self._give_up_quick()
            return self._handed_on.pop(quick.sequence, None) or self._start_ordinary(quick)

    def _send_quick(self, quick: Quick) -> _Link | None:
        """None when it needs the ordinary way. (A sequence that was not used is a gap, and gaps are allowed.)"""
        ready = None if self._closed else self.session.quick_push(quick.layout, quick.weight)
        link = self._links.get(ready[0].name) if ready is not None else None
        if ready is None or link is None or link.entry is not ready[0]:
            return None
        quick.sequence, self._quick = ready[1].sequence, quick
        try:
            link.connection.send(encode(ready[1]), quick.values, len(quick.values[0]))
        except CommunicationError:
            link.connection.shut()  # which shows when it is received from
        return link

    def _receive_quick(self, quick: Quick, link: _Link) -> None:
        """Until it is answered, or until it is time to send it again, which is the session's to do."""
        receive, until_s = link.connection.receive, time.perf_counter() + LOOK_AGAIN_S
        try:
            while not quick.done and self._quick is quick and time.perf_counter() < until_s:
                if not receive():
                    os.sched_yield()
            while not quick.done and self._quick is quick and not link.connection.can_flush:
                if not link.connection.receive_within(min(_RECEIVE_S, self.timeouts.resend_s)):
                    return
        except CommunicationError as error:
            self._drop(link, error)

    def _start_ordinary(self, quick: Quick) -> Pending[Any]:
        pending = quick.make_pending()
        self.start(
            pending,
            lambda now_s: self.session.push(quick.layout, quick.values, now_s=now_s, weight=quick.weight, pull=True),
        )
        return pending

    def _give_up_quick(self) -> Pending[Any] | None:
        """Before the session hears of anything else: a quick push becomes an operation like any other."""
        quick, self._quick = self._quick, None
        if quick is None or quick.done:
            return None
        pending = quick.make_pending()
        pending.sequence = self.session.quick_register(quick.layout, quick.values, quick.weight, time.monotonic())
        self._pending[pending.sequence] = self._handed_on[pending.sequence] = pending
        return pending

    def leave_to_background(self) -> None:
        """Nobody waits just now: somebody else must send what is left."""
        if any(link.connection.can_flush for link in list(self._links.values())):
            self._wake()

    def wait(self, pending: Pending[Any], timeout_s: float | None) -> None:
        """Until it is over; receives for everybody if nobody else does."""
        limit_s = self.timeouts.step_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        while not pending.over:
            if self._reading.acquire(blocking=False):
                try:
                    self._receive_until(pending, deadline_s)
                finally:
                    self._stop_reading()
            else:
                self._follow(pending, deadline_s)
            if not pending.over and time.monotonic() >= deadline_s:
                raise PeerTimeout(f"{self._who_is_late(pending)} did not answer {pending.what} within {limit_s:g} s")

    def poll(self, pending: Pending[Any]) -> bool:
        """Whether it is over; takes what is there, without waiting."""
        if not pending.over and self._reading.acquire(blocking=False):
            try:
                self._receive_ready(0.0)
            finally:
                self._stop_reading()
        return pending.over

    def close(self) -> None:
        """Leaves; whatever is still open fails with Closed."""
        with self._lock:
            if self._closed:
                return
            with contextlib.suppress(CommunicationError):
                self._obey(self.session.leave())
            self._give_up_quick()
            self._closed = True
            for sequence in list(self._pending):
                self._fail(sequence, Closed(f"the store at {self.address} was closed here before this was done"))
            self._changed.notify_all()
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._reading, self._lock:
            self._close_retired()
            for link in self._links.values():
                link.connection.close()
            self._links.clear()
            if self._coordinator is not None:
                self._coordinator.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    # --- receiving ---

    def _receive_until(self, pending: Pending[Any], deadline_s: float) -> None:
        while not pending.over:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            links = self._links
            if len(links) == 1:
                (link,) = links.values()
                if not link.connection.can_flush:
                    self._take(link, min(_RECEIVE_S, left_s) if left_s < _RECEIVE_S else _RECEIVE_S)
                    continue
            self._receive_ready(min(_TICK_S, left_s))

    def _receive_ready(self, timeout_s: float) -> None:
        """Sends and receives on every link where that is possible now."""
        with self._lock:
            links = {link.connection.fileno(): link for link in self._links.values() if not link.connection.closed}
        poll = select.poll()
        for number, link in links.items():
            poll.register(number, select.POLLIN | (select.POLLOUT if link.connection.can_flush else 0))
        if not links:
            time.sleep(min(timeout_s, _DIAL_AGAIN_S))  # every server is unreachable: the background dials again
        for number, events in poll.poll(timeout_s * 1000) if links else ():
            if events & select.POLLOUT:
                self._flush(links[number])
            if events & ~select.POLLOUT:
                self._take(links[number], None)

    def _take(self, link: _Link, timeout_s: float | None) -> None:
        try:
            if timeout_s is None:
                link.connection.receive()
            else:
                link.connection.receive_within(timeout_s)
        except CommunicationError as error:
            self._drop(link, error)

    def _flush(self, link: _Link) -> None:
        with self._lock, contextlib.suppress(CommunicationError):  # who receives will see what is wrong
            link.connection.flush()

    def _stop_reading(self) -> None:
        if self._retired:
            self._close_retired()
        self._reading.release()
        if self._followers:
            with self._lock:
                for follower in self._followers:
                    if not follower.over and follower.event is not None:
                        follower.event.set()
                        break

    def _close_retired(self) -> None:
        """By who receives: nobody else can be using them."""
        with self._lock:
            for connection in self._retired:
                connection.close()
            self._retired.clear()

    def _follow(self, pending: Pending[Any], deadline_s: float) -> None:
        """Somebody else receives: wait until it is over, or until that duty is handed on."""
        with self._lock:
            if pending.event is None:
                pending.event = threading.Event()
            pending.event.clear()
            if pending.over or not self._reading.locked():
                return
            self._followers.append(pending)
        pending.event.wait(max(0.0, min(_RECEIVE_S, deadline_s - time.monotonic())))
        with self._lock:
            self._followers.remove(pending)

    def _begin(self, link: _Link, data: memoryview) -> memoryview | None:
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError):
            raise FrameError(f"{link.entry.name} sent something that is no message of the store") from None
        if not isinstance(message, Initialised | Pushed | Pulled | Refused | Listed | Noted):
            raise FrameError(f"{link.entry.name} sent a client what belongs to others")
        quick = self._quick
        if quick is not None and type(message) is Pushed and message.sequence == quick.sequence:
            link.reply, link.targets = message, []
            return quick.target
        if isinstance(message, Pushed | Pulled):
            with self._lock:
                self._give_up_quick()
                pending = self._pending.get(message.sequence)
                part = self.session.expects(message)
                wanted = part is not None and message.shard in self.session.operations[message.sequence].unanswered
            if wanted and pending is not None:
                link.reply, link.targets = message, pending.targets(message.shard)
                return self._filled(link)
            link.connection.skip_body()
        self._heard(link, message)
        return None

    def _filled(self, link: _Link) -> memoryview | None:
        quick, reply = self._quick, link.reply
        if quick is not None and type(reply) is Pushed and reply.sequence == quick.sequence:
            with self._lock:
                if self._quick is quick:
                    self._quick = link.reply = None
                    self.session.quick_answered(reply)
                    quick.done = True
                    return None
        while link.targets:
            target = link.targets.pop()
            if target.nbytes:
                return target
        reply, link.reply = link.reply, None
        assert reply is not None
        self._heard(link, reply)
        return None

    def _heard(self, link: _Link, reply: Reply) -> None:
        with self._lock:
            self._give_up_quick()
            self._obey(self.session.receive(link.entry.name, reply, (), time.monotonic()))

    # --- sending; all of it under _lock ---

    def _obey(self, instructions: Instructions) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                self._send(instruction)
            elif isinstance(instruction, Done):
                pending = self._pending.pop(instruction.sequence, None)
                if pending is not None:
                    pending.finish(instruction)
            else:
                self._tell(instruction)

    def _send(self, instruction: Send[memoryview]) -> None:
        entry = instruction.server
        link = self._links.get(entry.name)
        if link is None or link.entry is not entry:
            link = self._open(entry, link)
        if link is None:
            return  # the background tries again
        values = instruction.values
        try:
            link.connection.send(encode(instruction.message), values, sum(map(len, values)))
        except CommunicationError:
            link.connection.shut()  # who receives will see the end, and drop it

    def _open(self, entry: ServerEntry, old: _Link | None) -> _Link | None:
        if old is not None:
            if old.entry == entry:
                old.entry = entry
                return old
            old.connection.shut()  # an earlier incarnation of that server
            self._retired.append(old.connection)
        try:
            sock = dial(parse_address(entry.address), self._secret, "client", self.timeouts.connect_s)
        except CommunicationError:
            self._unreachable[entry.name] = time.monotonic() + _DIAL_AGAIN_S
            return None
        link = _Link(entry, Connection(sock, f"server {entry.name} at {entry.address}", credit_bytes=0))
        link.connection.on_messages(lambda data: self._begin(link, data), lambda: self._filled(link), guard=self._lock)
        self._links[entry.name] = link
        return link

    def _drop(self, link: _Link, error: CommunicationError) -> None:
        """By who receives: what the link carried goes again over the next one."""
        with self._lock:
            current = self._links.get(link.entry.name) is link
            if current:
                del self._links[link.entry.name]
            link.connection.close()
            if current and not self._closed:
                self._give_up_quick()
                self._obey(self.session.lost(link.entry.name, time.monotonic()))

    def _tell(self, instruction: TellCoordinator) -> None:
        if self._coordinator is not None:
            with contextlib.suppress(CommunicationError):
                self._coordinator.send(encode(instruction.message))

    def _fail(self, sequence: int, error: CommunicationError) -> None:
        pending = self._pending.pop(sequence, None)
        if pending is not None:
            pending.fail(error)

    def _who_is_late(self, pending: Pending[Any]) -> str:
        with self._lock:
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

    # --- the background ---

    def _run(self) -> None:
        next_tick_s = 0.0
        while not self._closed:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                with self._lock:
                    self._tick(now_s)
            self._background_once(max(0.0, next_tick_s - now_s))

    def _tick(self, now_s: float) -> None:
        if self._closed:
            return
        if self._coordinator is None:
            with contextlib.suppress(CommunicationError):
                self._dial_coordinator()
        if self._quick is not None:
            return  # it is a matter of microseconds; whoever waits for it gives up after _RECEIVE_S
        self._obey(self.session.tick(now_s))
        for name in [name for name, at_s in self._unreachable.items() if now_s >= at_s]:
            del self._unreachable[name]
            self._obey(self.session.lost(name, now_s))

    def _background_once(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        coordinator = self._coordinator
        if coordinator is not None:
            poll.register(coordinator.fileno(), select.POLLIN | (select.POLLOUT if coordinator.can_flush else 0))
        with self._lock:
            unattended = bool(self._pending) and not self._reading.locked()
            links = list(self._links.values())
        for link in links:
            events = (select.POLLIN if unattended else 0) | (select.POLLOUT if link.connection.can_flush else 0)
            if events and not link.connection.closed:
                poll.register(link.connection.fileno(), events)
        ready = dict(poll.poll(timeout_s * 1000))
        if self._wake_read in ready:
            with contextlib.suppress(OSError):
                os.read(self._wake_read, 4096)
        if coordinator is not None and coordinator.fileno() in ready:
            self._hear_coordinator(coordinator)
        if self._closed:
            return
        for link in links:
            if link.connection.can_flush and not link.connection.closed:
                self._flush(link)
        if unattended and self._reading.acquire(blocking=False):
            try:
                self._receive_ready(0.0)
            finally:
                self._stop_reading()

    def _dial_coordinator(self) -> None:
        sock = dial(self.address, self._secret, "client", self.timeouts.connect_s)
        connection = Connection(sock, f"the coordinator at {self.address}")
        connection.on_messages(self._coordinator_said, lambda: None)
        self._coordinator = connection

    def _hear_coordinator(self, connection: Connection) -> None:
        try:
            connection.receive()
            with self._lock:
                connection.flush()
        except CommunicationError:
            with self._lock:
                connection.close()
                self._coordinator = None

    def _coordinator_said(self, data: memoryview) -> None:
        try:
            message: Message = decode(data)
        except (msgspec.DecodeError, ValueError):
            raise FrameError("the coordinator sent something that is no message of the store") from None
        with self._lock:
            self._give_up_quick()
            self._obey(self.session.hear(message, time.monotonic()))
            self._changed.notify_all()
            degraded = self.session.degraded
        if degraded != self._degraded:
            self._degraded = degraded
            self._emit(Degraded(degraded))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"w")
