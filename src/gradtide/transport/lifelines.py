"""A socket between each two ranks of a job on several hosts, by which they learn of each other's end.

Nothing travels on them while all is well. A rank that leaves says how far it came; a socket that closes without that
word is a rank that died. Both ends prove that they know the job's secret, which came through the launcher's store.

    word  first  second  length | text       what each word means is said where it is defined, below
"""

import contextlib
import enum
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from typing import Any, Protocol

from gradtide.errors import AuthenticationError, CommunicationError, PeerTimeout
from gradtide.transport.authenticate import Address, Handshake, dial
from gradtide.transport.hosts import read_key

__all__ = ["Lifelines", "Listener", "Word", "join_lifelines"]

_FRAME = struct.Struct("<BqqH")
_RANK = struct.Struct("<I")
_TEXT_BYTES = 4096
_STRANGER_S = 2.0  # who connects and says nothing is hung up on
_alive: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


class Word(enum.IntEnum):
    """What a rank can say."""

    ASK = 1  # how far are you?
    ANSWER = 2  # so many collectives entered, so many messages moved
    BROKEN = 3  # I gave up: why, as text
    BYE = 4  # I leave, after so many collectives
    GONE = 5  # never sent: the socket closed


class Listener(Protocol):
    """Who is told. In the lifelines' own thread: it must not wait for anything that thread does."""

    def heard(self, rank: int, word: Word, first: int, second: int, text: str) -> None: ...


class Lifelines:
    """This rank's sockets to all others, and the thread that reads them. It sleeps while nobody says anything."""

    def __init__(self, sockets: dict[int, socket.socket], listener: Listener) -> None:
        self._sockets, self._listener = sockets, listener
        self._lock = threading.RLock()  # a garbage collection may close us while we hold it
        self._received = {rank: bytearray() for rank in sockets}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        for line in sockets.values():
            line.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="gradtide-lifelines", daemon=True)
        _alive.add(self)

    def start(self) -> None:
        self._thread.start()

    def say(self, rank: int, word: Word, first: int = 0, second: int = 0, text: str = "") -> None:
        """To one rank. Never waits: what a stopped rank can't take any more is not said."""
        encoded = text.encode()[:_TEXT_BYTES]
        with self._lock:
            if (line := self._sockets.get(rank)) is not None:
                frame = _FRAME.pack(word, first, second, len(encoded)) + encoded
                with contextlib.suppress(OSError):
                    if line.send(frame) != len(frame):
                        line.shutdown(socket.SHUT_WR)  # half a frame must not be followed by another

    def say_all(self, word: Word, first: int = 0, second: int = 0, text: str = "") -> None:
        for rank in list(self._sockets):
            self.say(rank, word, first, second, text)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._close_sockets()
        os.close(self._wake)

    def _close_sockets(self) -> None:
        for line in self._sockets.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)
                while line.recv(65536):  # what is left unread would make the kernel drop what we said last
                    pass
            line.close()
        self._sockets.clear()

    # --- The thread ---

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        rank_of = {line.fileno(): rank for rank, line in self._sockets.items()}
        for descriptor in rank_of:
            poll.register(descriptor, select.POLLIN)
        while not self._closed:
            for descriptor, _ in poll.poll():
                if descriptor in rank_of and not self._closed and not self._read(rank_of[descriptor]):
                    poll.unregister(descriptor)
                    self._listener.heard(rank_of[descriptor], Word.GONE, 0, 0, "")

    def _read(self, rank: int) -> bool:
        """Takes what a rank said. False: it is gone, or says what no rank of ours would."""
        try:
            data = self._sockets[rank].recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        received = self._received[rank]
        received += data
        while len(received) >= _FRAME.size:
            kind, first, second, length = _FRAME.unpack_from(received)
            if kind not in (Word.ASK, Word.ANSWER, Word.BROKEN, Word.BYE) or length > _TEXT_BYTES:
                return False
            if len(received) < _FRAME.size + length:
                break
            text = bytes(received[_FRAME.size : _FRAME.size + length]).decode(errors="replace")
            del received[: _FRAME.size + length]
            self._listener.heard(rank, Word(kind), first, second, text)
        return bool(data)

    def forget_in_child(self) -> None:
        # A forked child (a data loader's, say) would keep a killed rank's sockets open: nobody would notice its death.
        for line in self._sockets.values():
            line.close()
        self._sockets.clear()
        if not self._closed:
            self._closed = True
            os.close(self._wake)


def join_lifelines(store: Any, rank: int, size: int, address: str, timeout_s: float) -> dict[int, socket.socket]:
    """Everybody listens at its address, dials the ranks below it and lets in those above."""
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        store.set("secret", secrets.token_hex(32))
    secret = read_key(store, "secret", 0, timeout_s).encode()
    lines: dict[int, socket.socket] = {}
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, 0), family=family, backlog=size + 8) as listener:
            store.set(f"lifeline/{rank}", f"{listener.getsockname()[1]} {address}")
            for other in range(rank):
                port, host = read_key(store, f"lifeline/{other}", other, timeout_s).split(" ")
                remaining = max(0.001, deadline - time.monotonic())
                lines[other] = dial(Address(host=host, port=int(port)), secret, "rank", remaining)
                lines[other].sendall(_RANK.pack(rank))
            while len(lines) < size - 1:
                _admit(listener, secret, range(rank + 1, size), lines, deadline, timeout_s)
    except BaseException:
        for line in lines.values():
            line.close()
        raise
    return lines


def _admit(
    listener: socket.socket,
    secret: bytes,
    expected: range,
    lines: dict[int, socket.socket],
    deadline: float,
    timeout_s: float,
) -> None:
    """Lets one rank in. A stranger is hung up on."""
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        line, _ = listener.accept()
    except TimeoutError:
        missing = ", ".join(str(rank) for rank in expected if rank not in lines)
        raise PeerTimeout(f"rank {missing} did not join the job within {timeout_s:g} s; is it started?") from None
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rank = _greet(line, secret)
    except (OSError, CommunicationError):
        line.close()
        return
    if rank not in expected or rank in lines:
        line.close()
        return
    lines[rank] = line


def _greet(line: socket.socket, secret: bytes) -> int:
    """The listener's part of the challenge; returns the rank that the other says it is."""
    line.settimeout(_STRANGER_S)
    handshake = Handshake(secret, "rank")
    while not handshake.done:
        if not (data := line.recv(4096)):
            raise AuthenticationError("it hung up")
        line.sendall(handshake.feed(data))
    rest = handshake.rest
    while len(rest) < _RANK.size:
        if not (data := line.recv(_RANK.size - len(rest))):
            raise AuthenticationError("it hung up")
        rest += data
    return int(_RANK.unpack(rest[: _RANK.size])[0])


def _forget_in_child() -> None:
    for lifelines in list(_alive):
        lifelines.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
