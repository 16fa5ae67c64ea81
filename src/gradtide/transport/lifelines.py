"""A socket between each two ranks of a job on several hosts, by which they learn of each other's end.

Nothing travels on them while all is well but what kernels ask each other, and now and then what time it is, so that a
wire or a host that dies closes them within seconds. A rank that leaves says how far it came; a socket that closes
without that word is a rank that died. Both ends prove that they know the job's secret: its secret file, or one that
came through the launcher's store. Sockets for tensors are made the same way, and are encrypted where the job asks for
that (GRADTIDE_ENCRYPT).

    word  first  second  length | text       what each word means is said where it is defined, below
"""

import contextlib
import enum
import functools
import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradtide.environment import read_environment
from gradtide.errors import AuthenticationError, CommunicationError, ConfigError, PeerLost, PeerTimeout
from gradtide.processes.ready import can_read
from gradtide.processes.wake import WakePipe
from gradtide.transport.authenticate import Address, dial, family_of, set_congestion, tune
from gradtide.transport.handshake import Handshake
from gradtide.transport.hosts import read_key
from gradtide.transport.keys import Credentials, Key, read_credentials
from gradtide.transport.tls import TlsListener
from gradtide.transport.tls.sealed import seal

__all__ = ["Lifelines", "LinkEnd", "Listener", "Word", "connect_ranks", "job_credentials", "join_lifelines", "keys_of"]

_FRAME = struct.Struct("<BqqH")
_RANK = struct.Struct("<I")
_TEXT_BYTES = 4096
_STRANGER_S = 2.0  # who connects and has not proven itself by then is hung up on
_LOOK_S = 0.5
_QUIET_S = 30.0
_BY_FILE, _ENCRYPTED = "by the secret file", "by the secret file, encrypted"
_LIFELINE, _SECRET = "lifeline", "secret"
_alive: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


class Word(enum.IntEnum):
    """What a rank can say."""

    ASK = 1  # how far are you?
    ANSWER = 2  # so many collectives entered, so many messages moved
    BROKEN = 3  # I gave up: why, as text
    BYE = 4  # I leave, after so many collectives; in good order, or else not
    GONE = 5  # never sent: the socket closed
    WHERE = 6  # where in your code are you?
    HERE = 7  # there, as text
    CLOCK = 8  # what time is it? with the asker's own, in nanoseconds
    TIME = 9  # that again, the time here, and the name of this clock


_SAID = set(Word) - {Word.GONE}


class Listener(Protocol):
    """Who is told. In the lifelines' own thread: it must not wait for anything that thread does."""

    def heard(self, rank: int, word: Word, first: int, second: int, text: str) -> None: ...

    def heard_nothing(self) -> None:
        """Nobody has said anything for half a minute."""


class Lifelines:
    """This rank's sockets to all others, and the thread that reads them. It sleeps while nobody says anything."""

    def __init__(self, sockets: dict[int, socket.socket], listener: Listener) -> None:
        self._sockets, self._listener = sockets, listener
        self._lock = threading.RLock()  # a garbage collection may close us while we hold it
        self._received = {rank: bytearray() for rank in sockets}
        self._wake = WakePipe()
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

    def lose(self, rank: int) -> None:
        """Somebody who knows says that this rank is dead: the thread hears it as if its socket had closed."""
        with self._lock:
            if (line := self._sockets.get(rank)) is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._close_sockets()
        self._wake.close()

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
            ready = poll.poll(1000 * _QUIET_S)
            if not ready:
                self._listener.heard_nothing()
            for descriptor, _ in ready:
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
            if kind not in _SAID or length > _TEXT_BYTES:
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
            self._wake.close()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """This rank, as others of its group are linked to it."""

    rank: int
    address: str  # where it listens
    credentials: Credentials
    congestion: str = ""  # see authenticate.py; "": as the system does it

    def keys_for(self, purpose: str) -> Credentials:
        """Nobody in between can make a link of one kind one of another: each has keys of its own."""
        if purpose == _LIFELINE:
            return self.credentials
        keys = (Key(hmac.digest(key.secret, purpose.encode(), "sha256")) for key in self.credentials.keys)
        return Credentials(tuple(keys), insecure_network=True)


def join_lifelines(
    store: Any,
    rank: int,
    size: int,
    address: str,
    timeout_s: float,
    credentials: Credentials | None = None,
    look: Callable[[], None] | None = None,
) -> dict[int, socket.socket]:
    """A socket to every other rank. credentials: job_credentials, if they have been asked for already. look: see
    connect_ranks."""
    known = job_credentials(store, rank, timeout_s) if credentials is None else credentials
    return connect_ranks(store, LinkEnd(rank, address, known), _LIFELINE, range(size), timeout_s, look)


def keys_of(rank: int, purposes: Sequence[str]) -> list[str]:
    """What this rank has said in the store, by which it was linked for its lifelines and for these purposes."""
    return [*(f"{purpose}/{rank}" for purpose in (_LIFELINE, *purposes)), *([_SECRET] if rank == 0 else [])]


def connect_ranks(
    store: Any,
    end: LinkEnd,
    purpose: str,
    ranks: Sequence[int],
    timeout_s: float,
    look: Callable[[], None] | None = None,
) -> dict[int, socket.socket]:
    """A socket to each of these ranks, who name this one too: everybody listens at its address, dials the ranks below
    it and lets in those above. Rank 0 takes part. store: by which ranks learn where others listen.
    look: called now and then while this rank dials or waits to be dialled; it may raise.

    Who dialled must hear from the other end before it says anything: that one may be about to read who it is, and reads
    as much as there is. In a job that asks for it they are sealed (sealed.py), but for lifelines: on those no tensor
    goes, and that a wire is dead must not take a thread to notice."""
    deadline_s = time.monotonic() + timeout_s
    rank, address, credentials = end.rank, end.address, end.keys_for(purpose)
    encrypts = purpose != _LIFELINE and read_environment().encrypt
    lines: dict[int, socket.socket] = {}
    try:
        with socket.create_server((address, 0), family=family_of(address), backlog=len(ranks) + 8) as listener:
            if end.congestion:
                set_congestion(listener, end.congestion)
            store.set(f"{purpose}/{rank}", f"{listener.getsockname()[1]} {address}")
            for other in (other for other in ranks if other < rank):
                port, host = read_key(store, f"{purpose}/{other}", other, timeout_s).split(" ")
                remaining = max(0.001, deadline_s - time.monotonic())
                where = Address(host=host, port=int(port), tls=encrypts)
                lines[other] = _dialled(other, where, credentials, remaining, end.congestion, look)
                lines[other].sendall(_RANK.pack(rank))
            missing = {other for other in ranks if other > rank}
            certificate = _certificate() if encrypts and missing else None
            lines.update(_Door(listener, credentials, certificate).admitted(missing, deadline_s, timeout_s, look))
    except BaseException:
        for line in lines.values():
            line.close()
        raise
    return lines


def _dialled(
    rank: int,
    where: Address,
    credentials: Credentials,
    timeout_s: float,
    congestion: str,
    look: Callable[[], None] | None,
) -> socket.socket:
    try:
        line = dial(where, credentials, "rank", timeout_s, congestion=congestion, look=look)
    except (PeerLost, PeerTimeout) as error:
        if look is not None:
            look()  # which may know better why
        raise type(error)(f"rank {rank} could not be reached: {error}") from None
    return line.sock if line.tls is None else seal(line.sock, line.tls, f"rank {rank}")


def job_credentials(store: Any, rank: int, timeout_s: float) -> Credentials:
    """By the job's secret file where it has one, of which nothing is sent. Else by a secret that goes through the
    launcher's store, and so is as open as that is."""
    path, encrypts = read_environment().secret_file, read_environment().encrypt
    if encrypts and not path:
        raise ConfigError(
            "GRADTIDE_ENCRYPT needs the job's secret file; make one (gradtide secret PATH), and name it on all hosts: "
            "GRADTIDE_SECRET_FILE"
        )
    if rank == 0:
        store.set(_SECRET, _ENCRYPTED if encrypts else _BY_FILE if path else secrets.token_hex(32))
    told = read_key(store, _SECRET, 0, timeout_s)
    by_file = told in (_BY_FILE, _ENCRYPTED)
    if by_file != bool(path):
        has, has_not = ("rank 0", f"rank {rank}") if by_file else (f"rank {rank}", "rank 0")
        raise ConfigError(
            f"{has} has a secret file and {has_not} has none; set GRADTIDE_SECRET_FILE alike on all hosts"
        )
    if (told == _ENCRYPTED) != encrypts:
        asks, does_not = (f"rank {rank}", "rank 0") if encrypts else ("rank 0", f"rank {rank}")
        raise ConfigError(
            f"{asks} asks for encryption and {does_not} does not; set GRADTIDE_ENCRYPT alike on all hosts"
        )
    if not path:
        return Credentials((Key(told.encode()),), insecure_network=True)  # nothing but who lives and how far they are
    keys = read_credentials(path).keys
    named = next((key for key in keys if key.name), None)
    if named is not None:
        raise ConfigError(
            f"{path} is the key of {named} alone; ranks need one that all have: the root's, or a worker's"
        )
    ours = tuple(Key(hmac.digest(key.secret, b"gradtide lifelines", "sha256")) for key in keys)
    return Credentials(ours, insecure_network=True)


@functools.cache
def _certificate() -> TlsListener:
    """This process's, for all of its groups: to make one takes a tenth of a second."""
    return TlsListener()


class _Door:
    """Lets ranks in, many at a time: a stranger who says nothing, or one byte now and then, holds nobody up."""

    def __init__(self, listener: socket.socket, credentials: Credentials, certificate: TlsListener | None) -> None:
        """certificate: for sockets that are to be encrypted; then nobody comes in otherwise."""
        self._listener, self._credentials, self._certificate = listener, credentials, certificate
        self._waiting: dict[int, tuple[socket.socket, Handshake, float]] = {}  # by descriptor
        listener.setblocking(False)

    def admitted(
        self, missing: set[int], deadline_s: float, timeout_s: float, look: Callable[[], None] | None
    ) -> Iterator[tuple[int, socket.socket]]:
        """Each of these ranks, and its socket."""
        try:
            while missing:
                if look is not None:
                    look()
                now_s = time.monotonic()
                if now_s >= deadline_s:
                    late = ", ".join(map(str, sorted(missing)))
                    raise PeerTimeout(f"rank {late} did not join the job within {timeout_s:g} s; is it started?")
                for number in [n for n, (_, _, until_s) in self._waiting.items() if until_s <= now_s]:
                    self._waiting.pop(number)[0].close()
                for number in can_read([self._listener.fileno(), *self._waiting], min(deadline_s - now_s, _LOOK_S)):
                    if number == self._listener.fileno():
                        self._accept()
                    elif (found := self._hear(number)) is not None and found[0] in missing:
                        missing.discard(found[0])
                        yield found
                    elif found is not None:
                        found[1].close()
        finally:
            for line, _, _ in self._waiting.values():
                line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._listener.accept()
            line.setblocking(False)
            tune(line)
            only_tls = self._certificate is not None
            handshake = Handshake(self._credentials, "rank", self._certificate, only_tls)
            self._waiting[line.fileno()] = line, handshake, time.monotonic() + _STRANGER_S

    def _hear(self, number: int) -> tuple[int, socket.socket] | None:
        """The rank that has proven itself now, if one has."""
        line, handshake, _ = self._waiting[number]
        try:
            data = line.recv(4096)
            if handshake.done:
                handshake.rest += data if handshake.tls is None else handshake.tls.decrypt(data)
            elif data and (answer := handshake.feed(data)):
                line.sendall(answer)
            if not data or handshake.refusal:
                raise AuthenticationError(handshake.refusal or "it hung up")
        except (OSError, CommunicationError):
            self._waiting.pop(number)[0].close()
            return None
        if not handshake.done or len(handshake.rest) < _RANK.size:
            return None
        del self._waiting[number]
        line.setblocking(True)
        rank = int(_RANK.unpack(handshake.rest[: _RANK.size])[0])
        return rank, line if handshake.tls is None else seal(line, handshake.tls, f"rank {rank}")


def _forget_in_child() -> None:
    for lifelines in list(_alive):
        lifelines.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
