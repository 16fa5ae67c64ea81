"""A socket with TLS on it that can be used as Connection uses a socket: sendmsg and recv_into that never wait.

What was encrypted has to leave whole and in order. So what of `sendmsg` the kernel did not take counts as sent only
when it has left: until then the owner keeps it in its queue, as it does with what a plain socket did not take, and
need not know of the encrypted bytes that wait here. One thread may send while another receives: OpenSSL's objects are
not made for that, so a lock is held around each use, and never while anybody is called or waited for.
"""

import socket
import threading
from collections.abc import Iterator, Sequence

from gradtide.transport.frames import Buffer
from gradtide.transport.tls.end import TlsEnd

__all__ = ["TlsSocket"]

_PIECE_BYTES = 256 << 10  # encrypted or received at once: sixteen records, see docs/benchmarks.md


class TlsSocket:
    """As much of a socket as Connection needs."""

    def __init__(self, sock: socket.socket, end: TlsEnd) -> None:
        self._sock, self._end = sock, end
        self._lock = threading.Lock()
        self._arrived = memoryview(bytearray(_PIECE_BYTES))
        self._leaving = memoryview(b"")  # encrypted, and not taken by the kernel yet
        self._under_way = 0  # bytes that were given to sendmsg, are in there, and do not count as sent yet

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, blocking: bool) -> None:
        self._sock.setblocking(blocking)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    @property
    def holds(self) -> bool:
        """Whether something was received that poll can't see."""
        return self._end.holds and self._sock.fileno() >= 0

    def close(self) -> None:
        self._sock.close()

    def sendmsg(self, buffers: Sequence[Buffer], ancillary: tuple[()] = (), flags: int = 0) -> int:
        """How many bytes have left; BlockingIOError if none. What was not taken must come again, and first."""
        if not self._under_way:
            size = sum(map(len, buffers))
            if size <= _PIECE_BYTES:  # by far the most: no generator, no views
                return self._send(b"".join(buffers), flags)
        sent, self._under_way = self._under_way, 0
        if sent and not self._leave(flags):
            self._under_way = sent
            raise BlockingIOError
        for piece in _pieces(buffers, sent):
            try:
                sent += self._send(piece, flags)
            except BlockingIOError:
                if not sent:
                    raise
                break
        return sent

    def _send(self, piece: bytes | memoryview, flags: int) -> int:
        """All of it, or it is under way."""
        with self._lock:
            data = self._end.encrypt(piece)
        try:
            left = self._sock.send(data, flags)
        except BlockingIOError:
            left = 0
        if left < len(data):
            self._leaving = memoryview(data)[left:]
            if not self._leave(flags):
                self._under_way = len(piece)
                raise BlockingIOError
        return len(piece)

    def _leave(self, flags: int) -> bool:
        """Whether all that was encrypted has left."""
        while self._leaving:
            try:
                self._leaving = self._leaving[self._sock.send(self._leaving, flags) :]
            except BlockingIOError:
                return False
        return True

    def recv_into(self, target: memoryview, size: int = 0, flags: int = 0) -> int:
        """At least a byte; 0 at the end, BlockingIOError if there is none yet.

        As long as the kernel has more than is received at once and the target has room, it goes on.
        """
        end, count = self._end, 0
        if size:
            target = target[:size]
        if end.holds:
            with self._lock:
                count = end.decrypt_into(target)
            if count:
                return count
        while True:
            try:
                arrived = self._sock.recv_into(self._arrived, 0, flags)
            except OSError:  # if something came before, this is for the next call, which finds it, or the end
                if count:
                    return count
                raise
            if not arrived:
                return count
            with self._lock:
                end.feed(self._arrived[:arrived])
                count += end.decrypt_into(target[count:] if count else target)
            if count:
                if arrived < _PIECE_BYTES or count == target.nbytes:
                    return count
                flags = socket.MSG_DONTWAIT


def _pieces(buffers: Sequence[Buffer], skip: int) -> Iterator[bytes | memoryview]:
    """All but the first `skip` bytes, small buffers together and large ones in parts."""
    parts: list[memoryview] = []
    room = _PIECE_BYTES
    for buffer in buffers:
        view = memoryview(buffer)
        if skip:
            view, skip = view[skip:], max(0, skip - len(view))
        while len(view) > room:
            yield _join([*parts, view[:room]])
            view, parts, room = view[room:], [], _PIECE_BYTES
        if view:
            parts.append(view)
            room -= len(view)
    if parts:
        yield _join(parts)


def _join(parts: list[memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)
