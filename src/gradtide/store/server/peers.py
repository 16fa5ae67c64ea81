"""A server's connections to other servers, dialled in the background when there is something to say.

Only outgoing: what other servers say arrives in server.py. What can't be said now is dropped. The log sends it again,
at once when the connection is there.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.rules.tensors import DTYPES, bytes_of
from gradtide.store.wire.messages import Replicate, ServerMessage, Slot, Snapshot, encode
from gradtide.store.wire.placement import BLOCK_BYTES
from gradtide.transport.authenticate import parse_address
from gradtide.transport.connection import Connection
from gradtide.transport.dialer import Dialer, Heartbeat
from gradtide.transport.keys import Credentials
from gradtide.transport.service import Service
from gradtide.transport.shared_ring import connect_sharing

__all__ = ["Arriving", "Peers"]

_DIAL_AGAIN_S = 0.05
_DIAL_S = 2.0


class Arriving:
    """A message between servers whose values are arriving."""

    def __init__(self, message: Replicate | Snapshot) -> None:
        for slot in message.slots:
            _check(slot)
        self.message = message
        self.values: list[Tensor] = []  # room is made when it is needed: saying that much will come costs nothing

    def next(self) -> memoryview | None:
        """The memory for what comes next; None when all is there."""
        while len(self.values) < len(self.message.slots):
            slot = self.message.slots[len(self.values)]
            value = torch.empty(() if slot.scalar else slot.count, dtype=DTYPES[slot.dtype])
            self.values.append(value)
            if value.numel():
                return bytes_of(value.view(-1))
        return None


def _check(slot: Slot) -> None:
    dtype = DTYPES.get(slot.dtype)
    if dtype is None or not 0 <= slot.count * dtype.itemsize <= BLOCK_BYTES or (slot.scalar and slot.count != 1):
        raise FrameError("it sent a value that is larger than a block, or of no dtype of the store")


class _PeerLink:
    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.heartbeat: Heartbeat | None = None


class Peers:
    """Links to other servers, by name. All but dialling happens in the server's own thread."""

    def __init__(self, service: Service, credentials: Credentials, is_up: Callable[[str], None]) -> None:
        self._service, self._credentials, self._is_up = service, credentials, is_up
        self._links: dict[str, _PeerLink] = {}
        self._dialer: Dialer[tuple[str, str]] = Dialer(self._dial, service.wake, _DIAL_AGAIN_S)

    def send(self, name: str, address: str, message: ServerMessage, values: Sequence[Tensor]) -> Connection | None:
        """Sends, or begins to dial. Returns the connection if some of it has not left yet."""
        link = self._links.get(name)
        if link is None or link.address != address:
            self._forget(name)
            link = self._links[name] = _PeerLink(address)
        connection = link.connection
        if connection is None:
            self._dialer.want((name, address))
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
        for (name, address), connection in self._dialer.take():
            link = self._links.get(name)
            if link is None or link.address != address:  # it has moved meanwhile
                connection.close()
                continue
            link.connection, link.heartbeat = connection, Heartbeat(connection)
            connection.on_messages(_nothing, lambda: None)
            self._service.add(connection, lambda error, link=link: self._lost(link))  # type: ignore[misc]
            self._is_up(name)

    def drop_lost(self, now_s: float, lease_s: float) -> None:
        """From the loop, at every tick: what leads nowhere is dialled again when there is something to say."""
        for link in self._links.values():
            if link.connection is not None and link.heartbeat is not None and link.heartbeat.is_lost(now_s, lease_s):
                self._service.remove(link.connection)
                link.connection = None
            elif link.connection is not None:
                self._service.watch(link.connection)

    def close(self) -> None:
        self._dialer.close()

    def _dial(self, target: tuple[str, str]) -> Connection:
        name, address = target
        peer, enough = f"server {name} at {address}", len(self._links)
        made = connect_sharing(parse_address(address), self._credentials, "server", _DIAL_S, peer, enough)
        return made.expect("server", name)

    def _lost(self, link: _PeerLink) -> None:
        link.connection = None

    def _forget(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None and link.connection is not None:
            self._service.remove(link.connection)


def _nothing(data: memoryview) -> memoryview | None:
    raise FrameError("a server answers over its own connection")
