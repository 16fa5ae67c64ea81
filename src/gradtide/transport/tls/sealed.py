"""An encrypted connection that looks like a plain socket, to those who know nothing of TLS: compiled code, above all.

What they hold is one end of a pair of sockets. A thread encrypts what is written there and sends it on, and writes what
arrives there decrypted. It ends when either side closes, and takes the other along, once all is passed on that came
before. So who closes a sealed socket waits a moment for what it has written to leave, as the kernel would see to it.
"""

import atexit
import contextlib
import math
import os
import select
import socket
import sys
import threading
import time
import weakref
from typing import Any

from gradtide.errors import CommunicationError
from gradtide.transport.tls.end import TlsEnd

__all__ = ["SealedSocket", "meddling_with", "seal"]

_PIECE_BYTES = 256 << 10  # encrypted or received at once: sixteen records, see docs/benchmarks.md
_RECORD_BYTES = 32 << 10  # what an incomplete record of the piece before can add
_BUFFER_BYTES = 1 << 20  # of the kernel, each way, between the plain end and the thread
_LEAVE_S = 5.0  # how long who closes waits for what it has written
_pumps: "weakref.WeakSet[_Pump]" = weakref.WeakSet()


class SealedSocket(socket.socket):
    """The plain end. Options of TCP are those of the connection."""

    _pump: "_Pump"

    def setsockopt(self, level: int, *option: Any) -> None:
        if level == socket.IPPROTO_TCP:
            return self._pump.wire.setsockopt(level, *option)
        return super().setsockopt(level, *option)

    def shutdown(self, how: int) -> None:
        """Both ways, it is as if the connection broke: nobody is waited for. Who has several to close does this to all
        of them first: the time that close() waits counts from here."""
        if how == socket.SHUT_RDWR:
            self._pump.cut()
        elif how == socket.SHUT_WR:
            self._pump.end_soon()
        super().shutdown(how)

    def close(self) -> None:
        super().close()
        self._pump.wait()


def meddling_with(link: socket.socket) -> str:
    """Why an encrypted connection was given up, if what came on it was not what was sent; else nothing."""
    return link._pump.meddling if isinstance(link, SealedSocket) else ""


def seal(wire: socket.socket, tls: TlsEnd, peer: str) -> SealedSocket:
    """A plain socket instead of one on which TLS has begun, which is not the caller's any more. peer: for messages."""
    plain, inside = socket.socketpair()
    for end in (plain, inside):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    sealed = SealedSocket(fileno=plain.detach())
    sealed._pump = _Pump(wire, inside, tls, peer)
    sealed._pump.start()
    return sealed


class _Pump(threading.Thread):
    """Carries bytes between the connection and the inner end of the pair. Knows nothing of who holds the plain end."""

    def __init__(self, wire: socket.socket, inside: socket.socket, tls: TlsEnd, peer: str) -> None:
        super().__init__(name="gradtide-sealed", daemon=True)
        self.wire, self._inside, self._tls, self._peer = wire, inside, tls, peer
        self._leave_by = math.inf  # what was written
        self.meddling = ""  # what was wrong with what came
        self._lock = threading.Lock()  # a descriptor must not be shut when its number is another's already
        self._leaving = memoryview(b"")  # encrypted
        self._arrived = memoryview(b"")  # decrypted
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._room = memoryview(bytearray(_PIECE_BYTES + _RECORD_BYTES))
        self._wire_ended = self._inside_ended = False
        wire.setblocking(False)
        inside.setblocking(False)
        _pumps.add(self)

    def run(self) -> None:
        try:
            self._decrypt(b"")  # what came behind the handshake
            self._carry()
        except CommunicationError as error:
            self.meddling = str(error)
            print(f"gradtide: the encrypted link to {self._peer}: {error}", file=sys.stderr, flush=True)
        except OSError:
            pass  # a side is gone, and the other one learns of it now
        finally:
            self.close()

    def close(self) -> None:
        with self._lock:
            self.wire.close()
            self._inside.close()

    def cut(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self.wire.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Takes nothing more; what was written before still leaves."""
        with self._lock, contextlib.suppress(OSError):
            self._inside.shutdown(socket.SHUT_RD)
        self.wait()

    def end_soon(self) -> None:
        self._leave_by = min(self._leave_by, time.monotonic() + _LEAVE_S)

    def wait(self) -> None:
        if threading.current_thread() is not self:
            self.end_soon()
            self.join(max(0.0, self._leave_by - time.monotonic()))
            if self.is_alive():
                self.cut()
                self.join(_LEAVE_S)  # it ends at once, or when it gets a processor

    # --- The thread ---

    def _carry(self) -> None:
        poll, wire, inside = select.poll(), self.wire.fileno(), self._inside.fileno()
        moves = {wire: (self._receive, self._leave), inside: (self._take, self._hand_in)}
        while not (self._inside_ended and not self._leaving) and not (self._wire_ended and not self._arrived):
            wanted = {
                wire: _wanted(not self._arrived and not self._wire_ended, bool(self._leaving)),
                inside: _wanted(not self._leaving and not self._inside_ended, bool(self._arrived)),
            }
            for descriptor, events in wanted.items():
                # One that nothing is wanted of may have ended: poll would come back at once, again and again.
                if events:
                    poll.register(descriptor, events)
                else:
                    with contextlib.suppress(KeyError):
                        poll.unregister(descriptor)
            for descriptor, found in poll.poll():  # one that has ended finds that out by trying
                read, write = moves[descriptor]
                if found & ~select.POLLIN:
                    write()
                if found & ~select.POLLOUT and wanted[descriptor] & select.POLLIN:
                    read()

    def _take(self) -> None:
        """From the plain end to the wire."""
        with contextlib.suppress(BlockingIOError):
            count = self._inside.recv_into(self._piece)
            self._inside_ended = not count
            if count:
                self._leaving = memoryview(self._tls.encrypt(self._piece[:count]))
                self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._leaving:
                self._leaving = self._leaving[self.wire.send(self._leaving) :]

    def _receive(self) -> None:
        """From the wire to the plain end."""
        with contextlib.suppress(BlockingIOError):
            count = self.wire.recv_into(self._piece)
            self._wire_ended = not count
            if count:
                self._decrypt(self._piece[:count])

    def _decrypt(self, data: bytes | memoryview) -> None:
        self._tls.feed(memoryview(data))
        self._arrived = self._room[: self._tls.decrypt_into(self._room)]
        self._hand_in()

    def _hand_in(self) -> None:
        try:
            while self._arrived:
                self._arrived = self._arrived[self._inside.send(self._arrived) :]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads any more, but what was written may still have to leave
            self._arrived = memoryview(b"")


def _wanted(read: bool, write: bool) -> int:
    return (select.POLLIN if read else 0) | (select.POLLOUT if write else 0)


def _finish_all() -> None:
    """A process that ends without closing its sockets: what it has written is not lost with the threads."""
    for pump in list(_pumps):
        pump.finish()


def _forget_in_child() -> None:
    # A forked child must not keep connections open, and has no thread for them. The lock may be anybody's.
    for pump in list(_pumps):
        pump.wire.close()
        pump._inside.close()


atexit.register(_finish_all)
os.register_at_fork(after_in_child=_forget_in_child)
