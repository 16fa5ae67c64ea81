"""The shell around membership.py: hears what peers say, tells them what it answers, and lets time go by.

What was decided is in the journal before anybody is told. A server whose connection closes is thought dead at once.
"""

import time
from collections.abc import Callable

import msgspec

from gradtide.errors import CommunicationError, FrameError, StoreError
from gradtide.store.journal import Journal
from gradtide.store.membership import Membership, Recovery, Tell
from gradtide.store.messages import (
    Beat,
    CaughtUp,
    Inspect,
    Join,
    Lagging,
    Leave,
    Message,
    Promise,
    Resize,
    decode,
    encode,
)
from gradtide.transport.authenticate import Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["Coordinator"]

_TICK_S = 0.05


class Coordinator:
    """The one process that says who is alive and which server holds which shard."""

    def __init__(
        self,
        address: Address,
        secret: bytes = b"",
        *,
        lease_s: float = 2.0,
        insecure_network: bool = False,
        journal: Journal | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self._journal = journal
        record = journal.read() if journal is not None else None
        if record is None:
            self._membership = Membership(lease_s=lease_s)
        else:
            self._membership = Membership.restore(record, time.monotonic(), lease_s)
        self._membership.recovery = recovery or Recovery()
        listener = listen(address, secret, insecure_network)
        self.address = address if address.path else Address(host=address.host, port=listener.getsockname()[1])
        self._service = Service(listener, secret, "coordi", self._greet)
        self._connections: dict[str, Connection] = {}  # by the name of the peer
        self._incarnations: dict[str, int] = {}  # of whoever has that connection
        self._stopped = False
        self._gave_up: StoreError | None = None

    def run(self) -> None:
        """Until somebody calls `stop`, or until it finds that it has lost its journal."""
        self._tell([])  # the new term
        next_tick_s = 0.0
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._tell(self._membership.tick(now_s))
            self._service.run_once(max(0.0, next_tick_s - now_s))
        self._service.close()
        if self._journal is not None:
            self._journal.close()
        if self._gave_up is not None:
            raise self._gave_up

    def stop(self) -> None:
        self._stopped = True
        self._service.wake()

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        connection.on_messages(lambda message: self._hear(connection, message), lambda: None)
        return lambda error: self._forget(connection)

    def _hear(self, connection: Connection, data: memoryview) -> None:
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError):
            raise FrameError(f"{connection.peer} sent something that is no message of the store") from None
        match message:
            case Inspect():
                self._send(connection, self._membership.describe(time.monotonic()))
                return
            case Resize():
                answer, told = self._membership.resize(message.servers)
                self._tell(told)
                self._send(connection, answer)
                return
            case Join() | Beat() | Leave():
                connection.peer = message.name
                if message.incarnation >= self._incarnations.get(message.name, 0):
                    self._connections[message.name] = connection
                    self._incarnations[message.name] = message.incarnation
            case Promise() | CaughtUp() | Lagging():
                pass
            case _:
                raise FrameError(f"{connection.peer} sent a coordinator what belongs to a server")
        self._decide(message)

    def _decide(self, message: Message) -> None:
        try:
            self._tell(self._membership.hear(message, time.monotonic()))
        except StoreError as error:
            self._gave_up = error
            self.stop()

    def _tell(self, told: list[Tell]) -> None:
        if self._journal is not None:
            record = self._membership.take_unwritten()
            if record is not None:
                self._journal.write(record)
        for tell in told:
            connection = self._connections.get(tell.name)
            if connection is not None and not connection.closed:
                self._send(connection, tell.message)

    def _send(self, connection: Connection, message: Message) -> None:
        try:
            connection.send(encode(message))
        except CommunicationError:
            return  # its socket will say so itself
        self._service.watch(connection)

    def _forget(self, connection: Connection) -> None:
        name = connection.peer
        if self._connections.get(name) is connection:
            del self._connections[name]
            self._tell(self._membership.lost(name, self._incarnations.pop(name)))
