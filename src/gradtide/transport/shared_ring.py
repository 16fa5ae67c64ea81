"""Memory that the two ends of one connection share, for large bodies between processes of one machine.

Through a socket a body is copied into pages of the kernel, which it has to find and give back, and out of them again.
Here the sender copies it into a ring and only says where it lies. Each end has a ring to send from. A body that finds
no room goes through the socket, so nobody ever waits for room.

The memory belongs to the connection: when that ends, whoever still writes to it writes where nobody reads.
"""

import os
from collections.abc import Sequence
from struct import Struct

from gradtide.errors import CommunicationError, ConfigError, FrameError
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import MOST_RINGS, Connection, open_connection
from gradtide.transport.frames import PLACE, Buffer
from gradtide.transport.keys import Credentials
from gradtide.transport.memory import create_memory, map_memory, view_of

__all__ = ["SharedRing", "connect_sharing", "make_ring", "open_ring"]

_RING_BYTES = 16 << 20  # four frames
_COUNTERS_BYTES = 4096  # how far each ring has been read, in cache lines of their own
_SIZE_BYTES = _COUNTERS_BYTES + 2 * _RING_BYTES
_ALIGNED = 64  # so that numbers in it can be used where they lie
_COUNTER = Struct("<Q")
_pack_place = PLACE.pack


class SharedRing:
    """One end's view of two rings: the one it sends from, and the one that the other end does."""

    def __init__(self, memory: memoryview, first: bool) -> None:
        """`first`: the end that made it."""
        rings = memory[_COUNTERS_BYTES : _COUNTERS_BYTES + _RING_BYTES], memory[_COUNTERS_BYTES + _RING_BYTES :]
        counters = memory[:8], memory[64:72]
        self._mine, self._theirs = rings if first else rings[::-1]
        self._read_of_mine, self._read_of_theirs = counters if first else counters[::-1]
        self._written = 0  # of my ring, from the beginning
        self._free_from = 0  # of mine: everything before that has been read
        self._taken = 0  # of theirs

    def put(self, body: Sequence[Buffer], size: int) -> bytes | None:
        """Copies a body into my ring: its place, or None where there is no room."""
        (read,) = _COUNTER.unpack(self._read_of_mine)
        begin, front = -(-self._written // _ALIGNED) * _ALIGNED, -(-self._written // _RING_BYTES) * _RING_BYTES
        if read == self._written:  # all of it is free: the front is still in the caches
            begin = self._free_from = front
        elif begin % _RING_BYTES + size > _RING_BYTES:
            begin = front
        if begin + size - max(read, self._free_from) > _RING_BYTES:
            return None
        at = offset = begin % _RING_BYTES
        for view in body:
            self._mine[at : at + len(view)] = view
            at += len(view)
        self._written = begin + size
        return _pack_place(offset, self._written)

    def take(self, place: memoryview, size: int) -> memoryview:
        """The body that lies there, until `give_back`."""
        offset, self._taken = PLACE.unpack(place)
        if offset + size > _RING_BYTES:
            raise FrameError("it sent a body that lies outside of its memory")
        return self._theirs[offset : offset + size]

    def give_back(self) -> None:
        """What was taken last has been read."""
        _COUNTER.pack_into(self._read_of_theirs, 0, self._taken)


def connect_sharing(
    address: Address, credentials: Credentials, role: str, timeout_s: float, peer: str, open_now: int = 0
) -> Connection:
    """Dials; where that is on this machine, with memory for large bodies, unless so many are open that it's enough."""
    made = make_ring() if address.path and open_now < MOST_RINGS else None
    try:
        line = dial(address, credentials, role, timeout_s, made[0] if made is not None else -1)
    finally:
        if made is not None:
            os.close(made[0])
    return open_connection(line, peer, credit_bytes=0, ring=made[1] if made is not None else None)


def make_ring() -> tuple[int, SharedRing] | None:
    """A descriptor to hand to the other end, and this end's view; None where there is no such memory."""
    try:
        descriptor = create_memory("ring", _SIZE_BYTES)
    except ConfigError:
        return None
    try:
        mapping = map_memory(os.dup(descriptor), _SIZE_BYTES)
    except (OSError, ConfigError):
        os.close(descriptor)
        return None
    return descriptor, SharedRing(view_of(mapping, _SIZE_BYTES), first=True)


def open_ring(descriptor: int) -> SharedRing | None:
    """The other end's view of what was handed over; takes the descriptor."""
    try:
        return SharedRing(view_of(map_memory(descriptor, _SIZE_BYTES), _SIZE_BYTES), first=False)
    except (ConfigError, CommunicationError):
        return None
