"""A client's background thread: beats, resends, hears the coordinator, and moves bytes while nobody waits for them."""

import contextlib
import os
import select
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.messages import Message, decode, encode
from gradtide.transport.authenticate import dial
from gradtide.transport.connection import Connection

if TYPE_CHECKING:
    from gradtide.store.engine import Engine

__all__ = ["Upkeep", "Waker"]

_TICK_S = 0.05


class Waker:
    """Ends the `poll` of another thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._write, b"w")

    def drain(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._read, 4096)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Upkeep:
    """The thread, and the connection to the coordinator, which only it receives from."""

    def __init__(self, engine: "Engine", secret: bytes) -> None:
        self._engine, self._secret = engine, secret
        self._waker = Waker()
        self._coordinator: Connection | None = self._dial()
        self._dialling = False
        self._thread = threading.Thread(target=self._run, name="gradtide-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._waker.wake()

    def tell(self, message: Message) -> None:
        """Under the engine's lock. A word that is lost is said again."""
        if self._coordinator is not None:
            with contextlib.suppress(CommunicationError):
                self._coordinator.send(encode(message))

    def stop(self) -> None:
        """When the engine is closed: until the thread has ended."""
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
        self._waker.close()

    # --- the thread ---

    def _run(self) -> None:
        engine, next_tick_s = self._engine, 0.0
        while not engine.closed:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                with engine.lock:
                    self._tick(now_s)
            self._once(max(0.0, next_tick_s - now_s))

    def _tick(self, now_s: float) -> None:
        engine = self._engine
        if engine.closed:
            return
        if self._coordinator is None and not self._dialling:
            self._dialling = True
            threading.Thread(target=self._dial_again, name="gradtide-dial", daemon=True).start()
        if engine.quick is None:  # else it is a matter of microseconds; who waits for it gives up soon enough
            engine.obey(engine.session.tick(now_s))
            for name in engine.links.due(now_s):
                engine.obey(engine.session.lost(name, now_s))

    def _once(self, timeout_s: float) -> None:
        engine, coordinator, poll = self._engine, self._coordinator, select.poll()
        poll.register(self._waker, select.POLLIN)
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
        self._waker.drain()
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

    def _dial(self) -> Connection:
        engine = self._engine
        sock = dial(engine.address, self._secret, "client", engine.timeouts.connect_s)
        connection = Connection(sock, f"the coordinator at {engine.address}")
        connection.on_messages(self._said, lambda: None)
        return connection

    def _dial_again(self) -> None:
        connection = None
        with contextlib.suppress(CommunicationError):
            connection = self._dial()
        with self._engine.lock:
            self._dialling = False
            if connection is not None and self._engine.closed:
                connection.close()
            elif connection is not None:
                self._coordinator = connection
                self._waker.wake()

    def _hear(self, connection: Connection) -> None:
        try:
            connection.receive()
            with self._engine.lock:
                connection.flush()
        except CommunicationError:
            with self._engine.lock:
                connection.close()
                self._coordinator = None

    def _said(self, data: memoryview) -> None:
        try:
            message: Message = decode(data)
        except (msgspec.DecodeError, ValueError):
            raise FrameError("the coordinator sent something that is no message of the store") from None
        self._engine.hear(message)
