"""A server's connection to the coordinator: dialled beside the event loop, dialled again when it breaks."""

import threading
from collections.abc import Callable, Iterable

import msgspec

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.messages import Message, decode, encode
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["Uplink"]

_DIAL_AGAIN_S = 0.1


class Uplink:
    """Words to and from the coordinator. What can't be told is dropped: the next beat says it again."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self.address, self.secret = address, secret
        self._service: Service | None = None
        self._hear: Callable[[Message], None] | None = None
        self._connection: Connection | None = None
        self._dialled: list[Connection] = []  # what the dialling thread has reached, for the loop to take over
        self._dialler: threading.Thread | None = None
        self._dial_at_s = 0.0

    def start(self, service: Service, hear: Callable[[Message], None]) -> None:
        self._service, self._hear = service, hear
        self._dial()
        self._take_over()

    def poll(self, now_s: float) -> None:
        """From the loop, now and then: takes over what was dialled, dials what broke."""
        self._take_over()
        if self._connection is None and self._dialler is None and now_s >= self._dial_at_s:
            self._dial_at_s = now_s + _DIAL_AGAIN_S
            self._dialler = threading.Thread(target=self._dial, name="gradtide-uplink", daemon=True)
            self._dialler.start()

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
        dialler = self._dialler
        if dialler is not None:
            dialler.join()
        for connection in self._dialled:
            connection.close()

    def _dial(self) -> None:
        try:
            sock = dial(self.address, self.secret, "server")
        except CommunicationError:
            self._dialler = None
            return
        self._dialled.append(Connection(sock, f"the coordinator at {self.address}"))
        self._dialler = None  # only now: the loop must not dial a second time
        if self._service is not None:
            self._service.wake()

    def _take_over(self) -> None:
        while self._dialled and self._connection is None:
            self._connection = connection = self._dialled.pop()
            connection.on_messages(self._receive, lambda: None)
            assert self._service is not None
            self._service.add(connection, self._lost)

    def _receive(self, data: memoryview) -> None:
        assert self._hear is not None
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError):
            raise FrameError("the coordinator sent something that is no message of the store") from None
        self._hear(message)

    def _lost(self, error: CommunicationError) -> None:
        self._connection = None
