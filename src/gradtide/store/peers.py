"""A server's connections to other servers: dialled beside the event loop when there is something to say.

What can't be said now is dropped. The log sends it again, at once when the connection is there.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.messages import Replicate, ServerMessage, Slot, Snapshot, encode
from gradtide.store.placement import BLOCK_BYTES
from gradtide.store.tensors import DTYPES, bytes_of
from gradtide.transport.authenticate import parse_address
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service
from gradtide.transport.window import connect_sharing

__all__ = ["Arriving", "Peers"]

_DIAL_AGAIN_S = 0.05
_DIAL_S = 2.0


class Arriving:
    """A message between servers whose values are arriving."""

    def __init__(self, message: Replicate | Snapshot) -> None:
        self.message = message
        self.values: list[Tensor] = [_room(slot) for slot in message.slots]
        self._next = 0

    def next(self) -> memoryview | None:
        """The memory for what comes next; None when all is there."""
        while self._next < len(self.values):
            value = self.values[self._next]
            self._next += 1
            if value.numel():
                return bytes_of(value.view(-1))
        return None


def _room(slot: Slot) -> Tensor:
    dtype = DTYPES.get(slot.dtype)
    if dtype is None or not 0 <= slot.count * dtype.itemsize <= BLOCK_BYTES or (slot.scalar and slot.count != 1):
        raise FrameError("it sent a value that is larger than a block, or of no dtype of the store")
    return torch.empty(() if slot.scalar else slot.count, dtype=dtype)


class _Link:
    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.dialling = False
        self.dial_at_s = 0.0


class Peers:
    """Links to other servers, by name. All but dialling happens in the server's own thread."""

    def __init__(self, service: Service, secret: bytes, is_up: Callable[[str], None]) -> None:
        self._service, self._secret, self._is_up = service, secret, is_up
        self._links: dict[str, _Link] = {}
        self._dialled: list[tuple[str, _Link, Connection]] = []
        self._closed = False

    def send(self, name: str, address: str, message: ServerMessage, values: Sequence[Tensor]) -> Connection | None:
        """Sends, or begins to dial. Returns the connection if some of it has not left yet."""
        link = self._links.get(name)
        if link is None or link.address != address:
            self._forget(name)
            link = self._links[name] = _Link(address)
        connection = link.connection
        if connection is None:
            self._dial(name, link)
            return None
        bodies = [bytes_of(value.reshape(-1)) for value in values]
        try:
            connection.send(encode(message), bodies, sum(map(len, bodies)))
        except CommunicationError:
            return None  # the loop will notice
        if connection.can_flush:
            self._service.watch(connection)
        return connection if connection.queued_bytes else None

    def poll(self) -> None:
        """From the loop: takes over what was dialled."""
        while self._dialled:
            name, link, connection = self._dialled.pop()
            if self._links.get(name) is not link:
                connection.close()
                continue
            link.connection, link.dialling = connection, False
            connection.on_messages(_nothing, lambda: None)
            self._service.add(connection, lambda error, link=link: self._lost(link))  # type: ignore[misc]
            self._is_up(name)

    def close(self) -> None:
        self._closed = True
        for _, _, connection in self._dialled:
            connection.close()

    def _dial(self, name: str, link: _Link) -> None:
        now_s = time.monotonic()
        if not link.dialling and now_s >= link.dial_at_s:
            link.dialling, link.dial_at_s = True, now_s + _DIAL_AGAIN_S
            threading.Thread(target=self._reach, args=(name, link), name="gradtide-peer", daemon=True).start()

    def _reach(self, name: str, link: _Link) -> None:
        try:
            peer = f"server {name} at {link.address}"
            address, enough = parse_address(link.address), len(self._links)
            connection = connect_sharing(address, self._secret, "server", _DIAL_S, peer, enough)
        except CommunicationError:
            link.dialling = False
            return
        if self._closed:
            connection.close()
            return
        self._dialled.append((name, link, connection))  # `poll` then says that nobody is dialling: else two might
        self._service.wake()

    def _lost(self, link: _Link) -> None:
        link.connection = None

    def _forget(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None and link.connection is not None:
            self._service.remove(link.connection)


def _nothing(data: memoryview) -> memoryview | None:
    raise FrameError("a server answers over its own connection")
