"""One authenticated socket as a stream of messages with bodies, both ways.

A connection never waits by itself: `send` hands over what the kernel takes and keeps the rest in order, `receive` takes
what is there. Who has nothing else to do calls `wait`. Body bytes are sent only as far as the other side has given
credit, so neither side can be made to hold more than it offered to.
"""

import fcntl
import os
import select
import socket
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from gradtide.errors import AuthenticationError, Closed, CommunicationError, PeerLost, PeerTimeout
from gradtide.transport.frames import (
    FRAME_BODY_BYTES,
    FRAME_META_BYTES,
    PLACE,
    AtOnce,
    Buffer,
    FrameReader,
    Place,
    credit_frame,
    cut,
    ping_frame,
    pong_frame,
    ring_frame,
    shared,
    whole,
)
from gradtide.transport.handshake import Identity
from gradtide.transport.spin import give_way, look_again
from gradtide.transport.tls.tls_socket import TlsSocket

if TYPE_CHECKING:
    from gradtide.transport.authenticate import Line
    from gradtide.transport.shared_ring import SharedRing

__all__ = ["MOST_RINGS", "UNLIMITED", "Connection", "TlsConnection", "open_connection"]

UNLIMITED = 1 << 62  # credit for a peer that only gets what it asked for
_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
MOST_RINGS = 32  # of one process, a gigabyte if all are used to the full; others' bodies go through their sockets
_MOST_BUFFERS = 256  # of one sendmsg
_SHARED_BYTES = (64 << 10) + 1  # from here on bodies go through shared memory, where there is any


class Connection:
    """Messages to and from one peer. Not for several threads at once."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        peer: str,
        credit_bytes: int = UNLIMITED,
        ring: "SharedRing | None" = None,
        identity: Identity | None = None,
    ) -> None:
        """`ring` is memory that the other side will say it has opened; until then nothing is sent through it."""
        self.peer = peer  # as in "server 1 at unix:/tmp/x"
        self.identity = identity or Identity()  # the role and name that the other side has proven
        self._ring = ring
        self._shares = False  # whether the other side has it open
        self.credit_bytes = credit_bytes  # how many body bytes may still be sent
        self._sock = sock
        self._send_now = sock.sendmsg
        self._frames: deque[tuple[int, list[Buffer]]] = deque()  # in order, waiting for credit or for the kernel
        self._wire: list[Buffer] = []  # what of the first frames is left to send; has its credit
        self._queued_bytes = 0
        self.arrivals = 0  # how often something came
        self._reader: FrameReader | None = None
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._guard: AbstractContextManager[object] = nullcontext()
        sock.setblocking(True)  # every call says itself whether it may wait

    def on_messages(
        self,
        begin: Callable[[memoryview], memoryview | None],
        filled: Place,
        guard: AbstractContextManager[object] | None = None,
        at_once: AtOnce | None = None,
        in_place: Callable[[memoryview], bool] | None = None,
        skipped: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Says who gets what arrives: see FrameReader. `guard` is the lock that others send under, if one thread sends
        while another receives."""
        self._guard = guard or nullcontext()
        self._reader = FrameReader(
            begin, filled, self._more_credit, at_once, self._ring, self._opened, in_place, skipped, self._asked
        )

    def use_ring(self, ring: "SharedRing") -> None:
        """Before `on_messages`: the other side has handed over memory; says that it is open."""
        self._ring, self._shares = ring, True
        self._queue(0, [ring_frame()])

    def ping(self) -> None:
        """Asks whether the other side is there; if so, `arrivals` grows."""
        self._queue(0, [ping_frame()])
        self.flush()

    def _asked(self) -> None:
        with self._guard:
            self._queue(0, [pong_frame()])

    def _opened(self) -> None:
        self._shares = self._ring is not None

    @property
    def has_ring(self) -> bool:
        return self._ring is not None

    def expect(self, role: str, name: str = "") -> "Connection":
        """Itself, if the other end is who was dialled: an address may lead to another process of the same job."""
        found = self.identity
        if found.role != role or (name and found.name and found.name != name):
            self.close()
            wanted, answers = f"{role} {name}".rstrip(), f"{found.role} {found.name}".rstrip()
            raise AuthenticationError(f"{self.peer} was dialled, but {answers} answers there instead of {wanted}")
        return self

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    @property
    def queued_bytes(self) -> int:
        """What was given to `send` and has not left."""
        return self._queued_bytes

    @property
    def unsent_bytes(self) -> int:
        """What has not reached the other side's kernel, be it queued here or in ours."""
        room = fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._queued_bytes + int.from_bytes(room, sys.byteorder)

    @property
    def can_flush(self) -> bool:
        """Whether something waits that only needs the kernel to have room."""
        return bool(self._wire) or (bool(self._frames) and self._frames[0][0] <= self.credit_bytes)

    @property
    def in_message(self) -> bool:
        return self._reader is not None and self._reader.in_message

    def skip_body(self) -> None:
        """For `begin` of on_messages: let the body of this message pass."""
        assert self._reader is not None
        self._reader.skip_body()

    def feed(self, data: bytes) -> None:
        """What came together with the end of the handshake."""
        assert self._reader is not None
        self._reader.feed(data)

    def keep_copies(self) -> None:
        """Copies what has not left: who gave it to `send` may now change it."""
        self._wire[:] = [bytes(buffer) if isinstance(buffer, memoryview) else buffer for buffer in self._wire]
        self._frames = deque((size, [bytes(buffer) for buffer in buffers]) for size, buffers in self._frames)

    def send(self, message: bytes, body: Sequence[memoryview] = (), body_bytes: int = 0) -> bool:
        """Sends now what the kernel takes, and keeps the rest for `flush`; whether all has left. Until then the body
        must not change. `body_bytes` is the sum of the lengths in `body`.
        """
        if (
            self._wire
            or self._frames
            or body_bytes > self.credit_bytes
            or body_bytes > FRAME_BODY_BYTES
            or len(message) > FRAME_META_BYTES
        ):
            for size, buffers in cut(message, body):
                self._queue(size, buffers)
                if self._shares:
                    self.flush()  # the other side reads one while we write the next
            return self.flush() and not self._frames
        return self.send_frame(whole(message, body_bytes), body, body_bytes)

    def send_frame(self, head: bytes | bytearray, body: Sequence[memoryview], body_bytes: int) -> bool:
        """The same for a frame whose header and message were put together before."""
        if self._wire or self._frames or body_bytes > self.credit_bytes:
            self._queue(body_bytes, [bytes(head), *body])
            return self.flush() and not self._frames
        self.credit_bytes -= body_bytes
        if self._shares and body_bytes >= _SHARED_BYTES:
            head, *body = self._share(body_bytes, [head, *body])  # type: ignore[assignment]
            body_bytes = body_bytes if body else 0
        try:
            sent = self._send_now((head, *body), (), _NOW)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._lost(error) from None
        left_bytes = len(head) + body_bytes - sent
        if left_bytes:
            self._queued_bytes += left_bytes
            self._wire += (bytes(head), *body)
            _drop(self._wire, sent)
        return not left_bytes

    def give_credit(self, body_bytes: int) -> None:
        """Tells the other side that it may send so many body bytes more. Leaves with whatever is sent next."""
        self._queue(0, [credit_frame(body_bytes)])

    def _queue(self, body_bytes: int, buffers: list[Buffer]) -> None:
        self._queued_bytes += body_bytes + len(buffers[0])
        if not self._frames and body_bytes <= self.credit_bytes:
            self._put_on_wire(body_bytes, buffers)
        else:
            self._frames.append((body_bytes, buffers))

    def _put_on_wire(self, body_bytes: int, buffers: list[Buffer]) -> None:
        self.credit_bytes -= body_bytes
        if self._shares and body_bytes >= _SHARED_BYTES:
            before = len(buffers[0]) + body_bytes
            buffers = self._share(body_bytes, buffers)
            self._queued_bytes += sum(map(len, buffers)) - before
        self._wire += buffers

    def _share(self, body_bytes: int, buffers: list[Buffer]) -> list[Buffer]:
        """A frame with its body in the ring, if there is room; else as it is."""
        assert self._ring is not None
        head = buffers[0]
        if len(head) > FRAME_META_BYTES - PLACE.size:
            return buffers
        place = self._ring.put(buffers[1:], body_bytes)
        return [shared(head, place, body_bytes)] if place is not None else buffers

    def flush(self) -> bool:
        """Sends what can be sent now; whether nothing is left that could."""
        wire = self._wire
        while wire:
            try:
                sent = self._send_now(wire if len(wire) <= _MOST_BUFFERS else wire[:_MOST_BUFFERS], (), _NOW)
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._lost(error) from None
            self._queued_bytes -= sent
            _drop(wire, sent)
            if not wire:
                self._admit()
        return True

    def _admit(self) -> None:
        frames = self._frames
        while frames and frames[0][0] <= self.credit_bytes and len(self._wire) < _MOST_BUFFERS:
            self._put_on_wire(*frames.popleft())

    def _more_credit(self, body_bytes: int) -> None:
        with self._guard:
            self.credit_bytes += body_bytes
            self._admit()
            self.flush()

    def receive(self) -> bool:
        """Takes what is there, without waiting; False when there was nothing. Calls those of `on_messages`."""
        assert self._reader is not None
        try:
            count = self._reader.receive(self._sock, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        if count == 0:
            raise self._lost(None)
        self.arrivals += 1
        return True

    def receive_within(self, timeout_s: float) -> bool:
        """The same, but waits for something to be there.

        With poll rather than in recv: who sleeps in recv on a UNIX socket is also woken when the other side has taken
        what we sent, for nothing.
        """
        give_way()  # on a processor that two share, the other one answers now
        poll = self._poll.poll
        return self.receive() or (bool(look_again(poll) or poll(timeout_s * 1000)) and self.receive())

    def wait(self, timeout_s: float, what: str) -> None:
        """Until there is something to receive or room to send; a PeerTimeout says who and what was awaited."""
        poll = select.poll()
        if self.closed:
            raise self._lost(None)
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self.can_flush else 0))
        if not poll.poll(max(0.0, timeout_s) * 1000):
            waited = f"{max(0.0, round(timeout_s, 3)):g} s"
            raise PeerTimeout(f"{self.peer} did not answer {what} within {waited}; is it overloaded or stopped?")

    def _lost(self, error: OSError | None) -> Closed | PeerLost:
        if self.closed:
            return Closed(f"the connection to {self.peer} was closed here; open another one")
        why = error.strerror if error is not None and error.strerror else "it closed the connection"
        return PeerLost(f"{self.peer} is gone: {why}; see its own output for why")

    def shut(self) -> None:
        """Ends the conversation both ways but keeps the descriptor: whoever receives sees the end and can close it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def part(self, timeout_s: float) -> None:
        """Closes, once the other side has read all that was sent and closed its end; after this time in any case."""
        deadline_s = time.monotonic() + timeout_s
        with suppress(OSError, CommunicationError):  # then there is nobody who could read it
            while not self.flush():
                self.wait(deadline_s - time.monotonic(), "the last words to it")
            self._sock.shutdown(socket.SHUT_WR)
            while self._poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000) and os.read(self.fileno(), 1 << 16):
                pass
        self.close()

    def close(self) -> None:
        """Ours to say: whoever uses the connection afterwards gets Closed, the other side sees PeerLost."""
        self._sock.close()
        self._frames.clear()
        self._wire.clear()
        self._shares, self._ring = False, None  # frees its memory
        if self._reader is not None:
            self._reader.forget_ring()


class TlsConnection(Connection):
    """The same over a socket with TLS: one that can hold what poll does not see."""

    def __init__(
        self, sock: TlsSocket, peer: str, credit_bytes: int = UNLIMITED, identity: Identity | None = None
    ) -> None:
        super().__init__(sock, peer, credit_bytes, identity=identity)
        self._tls = sock

    def receive(self) -> bool:
        """All that one recv has brought."""
        if not super().receive():
            return False
        while self._tls.holds and super().receive():
            pass
        return True


def open_connection(
    line: "Line", peer: str, credit_bytes: int = UNLIMITED, ring: "SharedRing | None" = None
) -> Connection:
    """Over a socket whose other end has proven itself; a ring is for UNIX sockets."""
    if line.tls is not None:
        return TlsConnection(TlsSocket(line.sock, line.tls), peer, credit_bytes, line.identity)
    return Connection(line.sock, peer, credit_bytes, ring, line.identity)


def _drop(wire: list[Buffer], sent: int) -> None:
    """Removes the first `sent` bytes."""
    done = 0
    for buffer in wire:
        size = len(buffer)
        if sent < size:
            break
        sent -= size
        done += 1
    del wire[:done]
    if sent:
        wire[0] = memoryview(wire[0])[sent:]
