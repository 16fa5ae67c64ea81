"""A server's connection to the coordinator, dialled again in the background when it breaks."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from gradtide.errors import AuthenticationError, CommunicationError
from gradtide.store.shard.lease import LEASE_S
from gradtide.store.wire.coordinators import Coordinators
from gradtide.store.wire.messages import Elsewhere, Message, Welcome, decode_from, encode
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.dialer import Dialer, Heartbeat
from gradtide.transport.keys import Credentials
from gradtide.transport.service import Service

__all__ = ["Uplink"]

_DIAL_AGAIN_S = 0.075  # at every second tick of a server
_SAY_S = 10.0  # without a coordinator: that is more than another one needs to take over
_log = logging.getLogger("gradtide.server")


class Uplink:
    """Words to and from the coordinator. What can't be told is dropped: the next beat says it again."""

    def __init__(self, address: Address, credentials: Credentials, *others: Address) -> None:
        self.address, self.credentials = address, credentials
        self._coordinators = Coordinators((address, *others))
        self._at = address  # which of them the connection leads to
        self._service: Service | None = None
        self._hear: Callable[[Message], None] | None = None
        self._connection: Connection | None = None
        self._told: set[Address] = set()  # of whom it was said that they refuse us, or do not answer
        self._alone_since_s = time.monotonic()
        self._elsewhere = False  # it has said that it does not lead
        self._dialer: Dialer[Address] = Dialer(self._dial, self._wake, _DIAL_AGAIN_S)

    def start(self, service: Service, hear: Callable[[Message], None]) -> None:
        """Dials at once, so that a server's first words reach a coordinator that is there."""
        self._service, self._hear = service, hear
        with contextlib.suppress(CommunicationError):
            self._use(self.address, self._dial(self.address))

    def poll(self, lease_s: float) -> None:
        """From the loop, now and then: takes over what was dialled, dials what broke or leads nowhere."""
        for address, connection in self._dialer.take():
            self._use(address, connection)
        if self._connection is not None and self._elsewhere:
            self._drop()
        if self._connection is not None and self._heartbeat.is_lost(time.monotonic(), lease_s or LEASE_S):
            self._drop()
            self._coordinators.missed(self._at)
        if self._connection is None and not self._coordinators.rests:
            self._dialer.want(self._coordinators.next)

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
            line = dial(address, self.credentials, "server", self._coordinators.connect_s)
            return open_connection(line, f"the coordinator at {address}").expect("coordinator")
        except CommunicationError as error:  # it is tried again for ever: somebody may yet change what is wrong there
            self._coordinators.missed(address)
            refused = isinstance(error, AuthenticationError)
            if address not in self._told and (refused or time.monotonic() - self._alone_since_s >= _SAY_S):
                _log.warning("%s: %s", "can't join" if refused else "it still looks for the coordinator", error)
                self._told.add(address)
            raise

    def _wake(self) -> None:
        assert self._service is not None
        self._service.wake()

    def _use(self, address: Address, connection: Connection) -> None:
        assert self._service is not None
        self._drop()  # if two were dialled, one after the other
        self._at, self._elsewhere = address, False
        self._told.discard(address)
        self._connection, self._heartbeat = connection, Heartbeat(connection)
        connection.on_messages(self._receive, lambda: None)
        self._service.add(connection, self._lost)

    def _receive(self, data: memoryview) -> None:
        assert self._hear is not None
        message = decode_from("the coordinator", data)
        if isinstance(message, Elsewhere):
            if not self._elsewhere:
                self._coordinators.hear(message, self._at)
            self._elsewhere = True  # the loop closes it
            return
        if isinstance(message, Welcome):
            self._coordinators.found()
        self._hear(message)

    def _drop(self) -> None:
        assert self._service is not None
        if self._connection is not None:
            self._service.remove(self._connection)
            self._alone_since_s = time.monotonic()
        self._connection = None

    def _lost(self, error: CommunicationError) -> None:
        self._connection, self._alone_since_s = None, time.monotonic()
        self._coordinators.missed(self._at)
