"""A client's background thread: beats, resends, hears the coordinator, and moves bytes while nobody waits for them.

It also tells those who asked for it (handle.when_done) of the end of operations.
"""

import contextlib
import select
import threading
import time
from typing import TYPE_CHECKING

from gradtide.errors import AuthenticationError, CommunicationError
from gradtide.handle import Tell, tell_all
from gradtide.processes.wake import WakePipe
from gradtide.store.shard.lease import LEASE_S
from gradtide.store.wire.messages import Elsewhere, Message, Welcome, decode_from, encode
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.dialer import Dialer, Heartbeat
from gradtide.transport.keys import Credentials

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine

__all__ = ["Upkeep"]

_TICK_S = 0.05
_PART_S = 1.0  # for a coordinator to hear that this client leaves; it may be stopped, or gone


class Upkeep:
    """The thread, and the connection to the coordinator, which only it receives from."""

    def __init__(self, engine: "Engine", credentials: Credentials) -> None:
        self._engine, self._credentials = engine, credentials
        self._elsewhere = False  # the coordinator has said that it does not lead
        self._coordinator: Connection | None
        self._at, connection = self._dial_any()
        self._coordinator, self._heartbeat = connection, Heartbeat(connection)
        self._wake = WakePipe()  # not before: where nobody listens, nothing is left open
        self._dialer: Dialer[Address] = Dialer(self._dial, self._arrived, _TICK_S / 2)  # at every tick
        self._to_tell: list[tuple[tuple[Tell, ...], BaseException | None]] = []  # of operations that have ended
        self._thread = threading.Thread(target=self._run, name="gradtide-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def connected(self) -> bool:
        return self._coordinator is not None

    def wake(self) -> None:
        self._wake.wake()

    def tell(self, message: Message) -> None:
        """Under the engine's lock. A word that is lost is said again."""
        if self._coordinator is not None:
            with contextlib.suppress(CommunicationError):
                self._coordinator.send(encode(message))

    def tell_later(self, told: tuple[Tell, ...], error: BaseException | None) -> None:
        """Under the engine's lock."""
        self._to_tell.append((told, error))
        self._wake.wake()

    def stop(self) -> None:
        """When the engine is closed: until the thread has ended."""
        self._wake.wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def close(self) -> None:
        """Only when the coordinator knows of it: who connects next as the same worker comes on another connection."""
        self._dialer.close()
        if self._coordinator is not None:
            self._coordinator.part(_PART_S)
        self._wake.close()

    def abandon(self) -> None:
        """In a forked process, where the thread is not."""
        self._wake.close()
        self._dialer.abandon()
        if self._coordinator is not None:
            self._coordinator.close()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._engine.die(error)
            raise

    def _work(self) -> None:
        engine, next_tick_s = self._engine, 0.0
        while not engine.closed:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                with engine.lock:
                    self._tick(now_s)
            self._once(max(0.0, next_tick_s - now_s))
            self._tell()
            if engine.dropped and not engine.pending:  # nobody can ask for anything any more
                engine.close()
        self._tell()  # what ended because the engine was closed, which took the lock to do so

    def _tell(self) -> None:
        if self._to_tell or self._engine.closed:
            with self._engine.lock:
                ended, self._to_tell = self._to_tell, []
            for told, error in ended:
                tell_all(told, error)

    def _tick(self, now_s: float) -> None:
        engine = self._engine
        if engine.closed:
            return
        self._drop_lost(now_s, engine.session.lease.lease_s or LEASE_S)
        if self._coordinator is None and not engine.address.rests:
            self._dialer.want(engine.address.next)
        if engine.fast.is_idle:  # else it is a matter of microseconds; who waits for it gives up soon enough
            engine.obey(engine.session.tick(now_s))
            for name in engine.links.due():
                engine.obey(engine.session.lost(name, now_s))

    def _drop_lost(self, now_s: float, lease_s: float) -> None:
        """What leads nowhere is dialled again: the coordinator at any time, a server while somebody waits for one."""
        coordinator = self._coordinator
        if coordinator is not None and (self._elsewhere or self._heartbeat.is_lost(now_s, lease_s)):
            coordinator.close()
            self._coordinator = None
            if not self._elsewhere:
                self._engine.address.missed(self._at)
        for link in self._engine.links.all() if self._engine.pending else ():
            if link.heartbeat.is_lost(now_s, lease_s):
                link.connection.shut()  # who receives will see the end, and drop it

    def _once(self, timeout_s: float) -> None:
        engine, coordinator, poll = self._engine, self._coordinator, select.poll()
        poll.register(self._wake, select.POLLIN)
        if coordinator is not None:
            poll.register(coordinator, select.POLLIN | (select.POLLOUT if coordinator.can_flush else 0))
        with engine.lock:
            unattended = bool(engine.pending) and not engine.reading.locked()
            links = engine.links.all()
            for link in links:
                events = (select.POLLIN if unattended else 0) | (select.POLLOUT if link.connection.can_flush else 0)
                if events:
                    poll.register(link.connection, events)
        ready = dict(poll.poll(timeout_s * 1000))
        self._wake.clear()
        if coordinator is not None and coordinator.fileno() in ready:
            self._hear(coordinator)
        if engine.closed:
            return
        for link in links:
            engine.flush(link)
        if unattended and engine.reading.acquire(blocking=False):
            try:
                engine.receive_ready(0.0)
            finally:
                engine.stop_reading()

    # --- the coordinator ---

    def _dial_any(self) -> tuple[Address, Connection]:
        """The first that answers. If none does: who refused is named before who was not there."""
        errors: list[CommunicationError] = []
        for address in self._engine.address.known:
            try:
                return address, self._dial(address)
            except CommunicationError as error:
                errors.append(error)
        raise next((error for error in errors if isinstance(error, AuthenticationError)), errors[-1])

    def _dial(self, address: Address) -> Connection:
        coordinators, timeout_s = self._engine.address, self._engine.timeouts.connect_s
        if len(coordinators.known) > 1:
            timeout_s = min(timeout_s, coordinators.connect_s)
        try:
            line = dial(address, self._credentials, "worker", timeout_s)
            connection = open_connection(line, f"the coordinator at {address}").expect("coordinator")
        except CommunicationError:  # nobody there, or somebody else: one of several may be wrong
            coordinators.missed(address)
            raise
        connection.on_messages(self._said, lambda: None)
        return connection

    def _arrived(self) -> None:
        with self._engine.lock:
            for address, connection in self._dialer.take():
                if self._coordinator is not None:  # two were dialled, one after the other
                    connection.close()
                    continue
                self._coordinator, self._heartbeat = connection, Heartbeat(connection)
                self._at, self._elsewhere = address, False
                self._wake.wake()

    def _hear(self, connection: Connection) -> None:
        try:
            connection.receive()
            with self._engine.lock:
                connection.flush()
        except CommunicationError:
            with self._engine.lock:
                connection.close()
                self._coordinator = None
                self._engine.address.missed(self._at)

    def _said(self, data: memoryview) -> None:
        message, coordinators = decode_from("the coordinator", data), self._engine.address
        if isinstance(message, Elsewhere):
            if not self._elsewhere:
                coordinators.hear(message, self._at)
            self._elsewhere = True  # the next tick closes it
            return
        if isinstance(message, Welcome):
            coordinators.found()
        self._engine.hear(message)
