"""The shell around membership.py: hears what peers say, tells them what it answers, and lets time go by."""

import time
from collections.abc import Callable

import msgspec

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.membership import Membership, Tell
from gradtide.store.messages import Beat, Join, Leave, Promise, decode, encode
from gradtide.transport.authenticate import Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["Coordinator"]

_TICK_S = 0.05


class Coordinator:
    """The one process that says who is alive and which server holds which shard."""

    def __init__(
        self, address: Address, secret: bytes = b"", *, lease_s: float = 2.0, insecure_network: bool = False
    ) -> None:
        self._membership = Membership(lease_s=lease_s)
        listener = listen(address, secret, insecure_network)
        self.address = address if address.path else Address(host=address.host, port=listener.getsockname()[1])
        self._service = Service(listener, secret, "coordi", self._greet)
        self._connections: dict[str, Connection] = {}  # by the name of the peer
        self._stopped = False

    def run(self) -> None:
        """Until somebody calls `stop`."""
        next_tick_s = 0.0
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._tell(self._membership.tick(now_s))
            self._service.run_once(max(0.0, next_tick_s - now_s))
        self._service.close()

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
            case Join() | Beat() | Leave():
                connection.peer = message.name
                self._connections[message.name] = connection
            case Promise():
                pass
            case _:
                raise FrameError(f"{connection.peer} sent a coordinator what belongs to a server")
        self._tell(self._membership.hear(message, time.monotonic()))

    def _tell(self, told: list[Tell]) -> None:
        for tell in told:
            connection = self._connections.get(tell.name)
            if connection is None or connection.closed:
                continue
            try:
                connection.send(encode(tell.message))
            except CommunicationError:
                continue  # its socket will say so itself
            self._service.watch(connection)

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
