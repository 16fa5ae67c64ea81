"""A server's connection to the coordinator, dialled again in the background when it breaks."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from gradtide.errors import AuthenticationError, CommunicationError
from gradtide.store.shard.lease import LEASE_S
from gradtide.store.wire.messages import Message, decode_from, encode
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.dialer import Dialer, Heartbeat
from gradtide.transport.keys import Credentials
from gradtide.transport.service import Service

__all__ = ["Uplink"]

_DIAL_AGAIN_S = 0.075  # at every second tick of a server
_log = logging.getLogger("gradtide.server")


class Uplink:
    """Words to and from the coordinator. What can't be told is dropped: the next beat says it again."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self.address, self.credentials = address, credentials
        self._service: Service | None = None
        self._hear: Callable[[Message], None] | None = None
        self._connection: Connection | None = None
        self._told = False  # that the coordinator refuses us
        self._dialer: Dialer[Address] = Dialer(self._dial, self._wake, _DIAL_AGAIN_S)

    def start(self, service: Service, hear: Callable[[Message], None]) -> None:
        """Dials at once, so that a server's first words reach a coordinator that is there."""
        self._service, self._hear = service, hear
        with contextlib.suppress(CommunicationError):
            self._use(self._dial(self.address))

    def poll(self, lease_s: float) -> None:
        """From the loop, now and then: takes over what was dialled, dials what broke or leads nowhere."""
        for _, connection in self._dialer.take():
            self._use(connection)
        if self._connection is not None and self._heartbeat.is_lost(time.monotonic(), lease_s or LEASE_S):
            assert self._service is not None
            self._service.remove(self._connection)
            self._connection = None
        if self._connection is None:
            self._dialer.want(self.address)

    def tell(self, words: Iterable[Message]) -> None:
        for word in words:
            if self._connection is None or self._service is None:
                return
            try:
                self._connection.send(encode(word))
            except CommunicationError:
                return  # the loop will notice
            self._service.watch(self._connection)

    def close(self) -> None:
        self._dialer.close()

    def _dial(self, address: Address) -> Connection:
        try:
            line = dial(address, self.credentials, "server")
        except AuthenticationError as error:
            if not self._told:  # it is tried again for ever: somebody may yet change what is wrong there
                _log.warning("can't join: %s", error)
            self._told = True
            raise
        return open_connection(line, f"the coordinator at {address}").expect("coordinator")

    def _wake(self) -> None:
        assert self._service is not None
        self._service.wake()

    def _use(self, connection: Connection) -> None:
        assert self._service is not None
        self._connection, self._heartbeat = connection, Heartbeat(connection)
        connection.on_messages(self._receive, lambda: None)
        self._service.add(connection, self._lost)

    def _receive(self, data: memoryview) -> None:
        assert self._hear is not None
        self._hear(decode_from("the coordinator", data))

    def _lost(self, error: CommunicationError) -> None:
        self._connection = None
