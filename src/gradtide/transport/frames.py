"""Frames: a fixed header, a small message in MessagePack, raw tensor bytes.

    header (12 bytes): magic and kind, bytes of message, bytes of body
    MESSAGE   a whole message, or its last part, and its whole body
    OPEN      the same, but the body goes on
    BODY      the rest of a body
    BODY_OPEN more of a body, which goes on
    PARTIAL   part of a message that is longer than one frame can take; more follows
    CREDIT    the receiver has room for `bytes of body` more body bytes; nothing follows
    RING      the receiver has opened the memory that came with the handshake; nothing follows
    PING      are you there? nothing follows
    PONG      yes; nothing follows

Of a kind with SHARED in it, the body lies in that memory (shared_ring.py), and the message begins with its place.

Nothing is allocated on the word of a header: a frame above one block (4 MiB) and 64 KiB is refused when its header is
read, and a body goes where the owner of the reader says, piece by piece, as it arrives. What is small goes through one
staging buffer, so a small message costs one system call; what is large is received where it belongs.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from gradtide.errors import FrameError

if TYPE_CHECKING:
    from gradtide.transport.shared_ring import SharedRing

__all__ = [
    "FRAME_BODY_BYTES",
    "FRAME_META_BYTES",
    "HEADER",
    "PLACE",
    "AtOnce",
    "Buffer",
    "FrameReader",
    "Kind",
    "Place",
    "Receives",
    "credit_frame",
    "cut",
    "ping_frame",
    "pong_frame",
    "ring_frame",
    "shared",
    "whole",
]

Buffer = bytes | bytearray | memoryview
Place = Callable[[], memoryview | None]
AtOnce = Callable[[memoryview, memoryview], bool]

FRAME_BODY_BYTES = 4 << 20
HEADER = Struct("<III")
FRAME_META_BYTES = (64 << 10) - HEADER.size
MESSAGE_BYTES = 16 << 20  # a message alone, however many frames it came in: names of some 100,000 keys


class Receives(Protocol):
    """As a socket does, with or without TLS."""

    def recv_into(self, target: memoryview, size: int = 0, flags: int = 0, /) -> int: ...


class Kind(IntEnum):
    """The first four bytes of a frame: a magic number and its kind."""

    MESSAGE = 0x47547D01
    OPEN = 0x47547D02
    BODY = 0x47547D03
    BODY_OPEN = 0x47547D04
    PARTIAL = 0x47547D05
    CREDIT = 0x47547D06
    RING = 0x47547D07
    PING = 0x47547D08
    PONG = 0x47547D09


# Plain numbers, because a look-up in an enum costs more than the rest of a header.
_MESSAGE, _OPEN, _BODY, _BODY_OPEN, _PARTIAL, _CREDIT, _RING, _PING, _PONG = (kind.value for kind in Kind)
_ALONE = (_RING, _PING, _PONG)  # nothing follows the header
_WITH_BODY = (_MESSAGE, _OPEN, _BODY, _BODY_OPEN)
_SHARED = 0x10
_KINDS = 0x0F
_SHARED_BASE = _MESSAGE & ~_KINDS | _SHARED
# Where a body begins in its ring, and how much has been written there with it since the beginning.
PLACE = Struct("<QQ")
_PLACE_BYTES = PLACE.size
_HEADER_BYTES = HEADER.size
_STAGE_BYTES = 128 << 10
_DIRECT_BYTES = 32 << 10  # from here on, a system call more is cheaper than a copy

_pack = HEADER.pack
_unpack = HEADER.unpack_from


def credit_frame(body_bytes: int) -> bytes:
    return _pack(_CREDIT, 0, body_bytes)


def ring_frame() -> bytes:
    return _pack(_RING, 0, 0)


def ping_frame() -> bytes:
    return _pack(_PING, 0, 0)


def pong_frame() -> bytes:
    return _pack(_PONG, 0, 0)


def shared(head: Buffer, place: bytes, body_bytes: int) -> bytes:
    """The head of a frame whose body lies in shared memory instead of following."""
    kind, meta_bytes, _ = _unpack(head)
    return _pack(kind | _SHARED, meta_bytes + len(place), body_bytes) + place + bytes(head[_HEADER_BYTES:])


def whole(message: bytes, body_bytes: int) -> bytes:
    """What goes before the body of a message that fits in one frame."""
    return _pack(_MESSAGE, len(message), body_bytes) + message


def cut(message: bytes, body: Sequence[memoryview] = ()) -> Iterator[tuple[int, list[Buffer]]]:
    """The frames of a message: how many body bytes each has, and its buffers."""
    while len(message) > FRAME_META_BYTES:
        yield 0, [_pack(_PARTIAL, FRAME_META_BYTES, 0) + message[:FRAME_META_BYTES]]
        message = message[FRAME_META_BYTES:]
    total = sum(view.nbytes for view in body)
    if total <= FRAME_BODY_BYTES:
        yield total, [whole(message, total), *body]
        return
    head, kind, rest = message, _OPEN, list(reversed(body))
    while total:
        size = min(total, FRAME_BODY_BYTES)
        total -= size
        if not total:
            kind = _BODY
        yield size, [_pack(kind, len(head), size) + head, *_take(rest, size)]
        head, kind = b"", _BODY_OPEN


def _take(views: list[memoryview], size: int) -> list[memoryview]:
    """So many bytes from the end of the list, which is the front of the body."""
    taken: list[memoryview] = []
    while size:
        view = views.pop()
        if view.nbytes > size:
            views.append(view[size:])
            view = view[:size]
        size -= view.nbytes
        taken.append(view)
    return taken


class FrameReader:
    """Turns what a socket receives into messages and filled memory.

    `begin(message)` is called with each message; it returns the memory that the body goes to first, or None when it
    wants none; what comes then is an error unless it called `skip_body`, after which `skipped(bytes)` says how much it
    was. `filled()` is called when that memory is full;
    it returns the next, or None when the body is complete. `credit(bytes)` is called when the other side has room.
    `asked()` is called when the other side wants to know whether we are there.
    `ring` is the memory that bodies may lie in, and `opened()` is called when the other side has it, too; then
    `in_place(bytes)` is asked instead of filling memory: True when they will be read where they lie, in `filled`.
    `at_once(message, body)` is asked first when one recv brought a message, all of its body and nothing else, as is
    usual for small ones: True when that was dealt with, False when it should go the way of all others.
    """

    def __init__(
        self,
        begin: Callable[[memoryview], memoryview | None],
        filled: Place,
        credit: Callable[[int], None],
        at_once: AtOnce | None = None,
        ring: "SharedRing | None" = None,
        opened: Callable[[], None] = lambda: None,
        in_place: Callable[[memoryview], bool] | None = None,
        skipped: Callable[[int], None] = lambda size: None,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        self._begin, self._filled, self._credit, self._at_once = begin, filled, credit, at_once
        self._asked = asked
        self._ring, self._opened, self._in_place = ring, opened, in_place
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._start = self._end = 0  # what is in the stage and not yet understood
        self._partial = bytearray()  # the earlier parts of a long message
        self._target: memoryview | None = None  # what is left of the memory that is being filled
        self._body_left = 0  # bytes of the current frame that are still to come
        self._open = False  # whether another frame of this body follows
        self._skipping = False
        self._skipped, self._skipped_bytes = skipped, 0

    @property
    def in_message(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._open or self._body_left > 0 or self._end > self._start or bool(self._partial)

    def forget_ring(self) -> None:
        self._ring = None

    def skip_body(self) -> None:
        """For `begin`: whatever the body is, let it pass."""
        self._skipping = True

    def receive(self, sock: Receives, flags: int = 0) -> int:
        """One recv and what follows from it; how many bytes came, 0 at the end. Raises what recv raises."""
        end = self._end
        if end:
            count = sock.recv_into(self._stage[end:], 0, flags)
        elif self._body_left >= _DIRECT_BYTES and self._target is not None and self._target.nbytes >= _DIRECT_BYTES:
            return self._receive_directly(sock, self._target, flags)
        else:
            count = sock.recv_into(self._stage, 0, flags)
            if self._at_once is not None and not self._body_left and count >= _HEADER_BYTES:
                kind, meta_bytes, body_bytes = _unpack(self._stage)
                body = _HEADER_BYTES + meta_bytes
                in_one = kind == _MESSAGE and body + body_bytes == count and meta_bytes <= FRAME_META_BYTES
                if in_one and not (self._open or self._partial):
                    stage = self._stage
                    if self._at_once(stage[_HEADER_BYTES:body], stage[body:count]):
                        return count
        self._end = end + count
        if count:
            self._understand()
        return count

    def feed(self, data: bytes) -> None:
        """Bytes that were received elsewhere; no more than fit."""
        self._stage[self._end : self._end + len(data)] = data
        self._end += len(data)
        self._understand()

    def _receive_directly(self, sock: Receives, target: memoryview, flags: int) -> int:
        count = sock.recv_into(target, min(self._body_left, target.nbytes), flags)
        self._body_left -= count
        self._target = target[count:] if count < target.nbytes else self._filled()
        if not self._body_left:
            self._end_frame()
        return count

    def _understand(self) -> None:
        """Goes through what is in the stage as far as it goes."""
        while self._end > self._start:
            if self._body_left:
                self._fill()
            elif not self._frame():
                break
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > _STAGE_BYTES - HEADER.size - FRAME_META_BYTES:
            rest = bytes(self._stage[self._start : self._end])
            self._stage[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _fill(self) -> None:
        start, target = self._start, self._target
        count = min(self._end - start, self._body_left)
        full = False
        if target is not None:
            size = target.nbytes
            count, full = min(count, size), count >= size
            if not full:
                self._target, target = target[count:], target[:count]
            target[:] = self._stage[start : start + count]
        elif not self._skipping:
            raise FrameError("a frame has more bytes than its message announced")
        else:
            self._skipped_bytes += count
        self._start = start + count
        self._body_left -= count
        if full:
            self._target = self._filled()
        if not self._body_left:
            self._end_frame()

    def _end_frame(self) -> None:
        if self._open:
            return
        if self._target is not None:
            raise FrameError("a frame has fewer bytes than its message announced")
        if self._skipping:
            size, self._skipping, self._skipped_bytes = self._skipped_bytes, False, 0
            self._skipped(size)

    def _frame(self) -> bool:
        """Reads one header and, where one follows, the message; False when they are not complete yet."""
        start = self._start
        here = self._end - start - HEADER.size
        if here < 0:
            return False
        kind, meta_bytes, body_bytes = _unpack(self._stage, start)
        if kind & ~_KINDS == _SHARED_BASE:
            return self._shared_frame(kind ^ _SHARED, meta_bytes, body_bytes)
        if kind != _MESSAGE or meta_bytes > FRAME_META_BYTES or body_bytes > FRAME_BODY_BYTES:
            _check(kind, meta_bytes, body_bytes)
        if here < meta_bytes:
            return False
        start += HEADER.size
        self._start = start + meta_bytes
        if kind <= _OPEN and not self._open:
            self._open, self._body_left = kind == _OPEN, body_bytes
            message = self._stage[start : start + meta_bytes]
            self._target = self._begin(self._joined(message) if self._partial else message)
            if not body_bytes:
                self._end_frame()
        else:
            self._other_frame(kind, self._stage[start : start + meta_bytes], body_bytes)
        return True

    def _shared_frame(self, kind: int, meta_bytes: int, body_bytes: int) -> bool:
        """The same for a frame whose body lies in shared memory."""
        ring = self._ring
        if ring is None or meta_bytes < _PLACE_BYTES or kind not in _WITH_BODY:
            raise FrameError("a body is said to lie in memory that is not there")
        _check(kind, meta_bytes - _PLACE_BYTES, body_bytes)
        start = self._start + HEADER.size
        if self._end - start < meta_bytes:
            return False
        self._start = start + meta_bytes
        message = self._stage[start + _PLACE_BYTES : self._start]
        body = ring.take(self._stage[start : start + _PLACE_BYTES], body_bytes)
        if kind <= _OPEN and not self._open:
            self._open = kind == _OPEN
            self._target = self._begin(self._joined(message) if self._partial else message)
        else:
            self._other_frame(kind, message, 0)
        while body:
            target = self._target
            if target is None:
                if not self._skipping:
                    raise FrameError("a frame has more bytes than its message announced")
                self._skipped_bytes += body.nbytes
                break
            count = min(target.nbytes, body.nbytes)
            if count < target.nbytes or self._in_place is None or not self._in_place(body[:count]):
                target[:count] = body[:count]
            body = body[count:]
            self._target = target[count:] if count < target.nbytes else self._filled()
        ring.give_back()
        self._end_frame()
        return True

    def _other_frame(self, kind: int, part: memoryview, body_bytes: int) -> None:
        if kind == _CREDIT:
            self._credit(body_bytes)
        elif kind == _RING:
            self._opened()
        elif kind == _PING:
            self._asked()
        elif kind == _PONG:
            pass  # that something came is all there is to know
        elif (kind in (_BODY, _BODY_OPEN)) != self._open:
            raise FrameError("a frame came where another kind was due")
        elif self._open:
            self._open, self._body_left = kind == _BODY_OPEN, body_bytes
        else:
            self._partial += part
            if len(self._partial) > MESSAGE_BYTES:
                raise FrameError(f"a message is longer than {MESSAGE_BYTES} bytes")

    def _joined(self, last: memoryview) -> memoryview:
        self._partial += last
        whole_message, self._partial = memoryview(self._partial), bytearray()
        return whole_message


def _check(kind: int, meta_bytes: int, body_bytes: int) -> None:
    if not _MESSAGE <= kind <= _PONG:
        raise FrameError("what came is no frame of gradtide")
    if meta_bytes > FRAME_META_BYTES or (body_bytes > FRAME_BODY_BYTES and kind != _CREDIT):
        raise FrameError(f"a frame of {meta_bytes} + {body_bytes} bytes is above the limit")
    if (kind in (_BODY, _BODY_OPEN, _CREDIT, *_ALONE) and meta_bytes) or (kind in (_PARTIAL, *_ALONE) and body_bytes):
        raise FrameError("a frame has parts that its kind has not")
    if kind in (_BODY, _BODY_OPEN, _OPEN) and not body_bytes:
        raise FrameError("a frame of a body is empty")
