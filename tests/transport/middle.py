"""Somebody in between: a real proxy on a real port that passes on, ends TLS itself, changes and remembers what is said.

And a real service to be reached through it, which sends back what it gets.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradtide.errors import CommunicationError
from gradtide.transport.authenticate import Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.handshake import GREETING_BYTES, VERSION, Identity
from gradtide.transport.keys import Credentials, Key
from gradtide.transport.service import Service
from gradtide.transport.tls import TlsEnd, TlsListener, call_tls

__all__ = ["LATE_S", "ROOT", "Echo", "Middle", "echoing", "ends_tls", "in_between", "meddling"]

ROOT = Credentials((Key(bytes(range(32))),), name="s0")
LATE_S = 10.0
Way = Callable[[str, bytes], bytes]  # "up" or "down", and what passes: what is passed on


class Echo:
    """A service that sends back what it gets, in a thread of its own."""

    def __init__(self, address: Address, credentials: Credentials, handshake_s: float = 5.0) -> None:
        listener = listen(address, credentials)
        self.address = Address(host=address.host, port=listener.getsockname()[1], tls=address.tls)
        self.met: list[Identity] = []
        self.lost: list[CommunicationError] = []
        self.service = Service(listener, credentials, "server", self._greet, handshake_s, address.tls)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        self.met.append(connection.identity)

        def answer(message: memoryview) -> None:
            connection.send(bytes(message))
            self.service.watch(connection)

        connection.on_messages(answer, lambda: None)
        return self.lost.append

    def _run(self) -> None:
        while not self._over:
            self.service.run_once(1.0)

    def close(self) -> None:
        self._over = True
        self.service.wake()
        self._thread.join(LATE_S)
        self.service.close()


@contextmanager
def echoing(
    tls: bool = True, handshake_s: float = 5.0, credentials: Credentials = ROOT, host: str = "127.0.0.1"
) -> Iterator[Echo]:
    echo = Echo(Address(host=host, port=0, tls=tls), credentials, handshake_s)
    try:
        yield echo
    finally:
        echo.close()


class Middle:
    """Listens at `address`, and does `talk` with each who comes and with who listens at `target`."""

    def __init__(self, target: Address, talk: Callable[[socket.socket, socket.socket], None]) -> None:
        self._target, self._talk = target, talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(host="127.0.0.1", port=self._listener.getsockname()[1], tls=target.tls)
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._target.host, self._target.port))
                self._threads.append(threading.Thread(target=self._between, args=(near, far), daemon=True))
                self._threads[-1].start()

    def _between(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError, CommunicationError):
            near.settimeout(LATE_S)
            far.settimeout(LATE_S)
            self._talk(near, far)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LATE_S)


@contextmanager
def in_between(target: Address, talk: Callable[[socket.socket, socket.socket], None]) -> Iterator[Middle]:
    middle = Middle(target, talk)
    try:
        yield middle
    finally:
        middle.close()


def meddling(change: Way) -> Callable[[socket.socket, socket.socket], None]:
    """Passes bytes on, as `change` says."""

    def pump(way: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(change(way, data))
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def talk(near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=pump, args=("down", far, near), daemon=True)
        back.start()
        pump("up", near, far)
        back.join(LATE_S)

    return talk


def ends_tls(listener: TlsListener, heard: list[bytes]) -> Callable[[socket.socket, socket.socket], None]:
    """Has a certificate of its own for who dials, and passes on in a TLS of its own what it has decrypted."""

    def talk(near: socket.socket, far: socket.socket) -> None:
        greeting = _exactly(near, GREETING_BYTES)
        far.sendall(greeting)
        near.sendall(_exactly(far, GREETING_BYTES))
        here, there = listener.accept(), call_tls()
        far.sendall(there.shake(b""))
        for sock, end in ((near, here), (far, there)):
            while not end.finished:
                if said := end.shake(sock.recv(65536)):
                    sock.sendall(said)
        _pass_on(near, here, far, there, heard)

    return talk


def _pass_on(near: socket.socket, here: TlsEnd, far: socket.socket, there: TlsEnd, heard: list[bytes]) -> None:
    """In turns, as the handshake goes: hello, answer, proof."""
    room = memoryview(bytearray(65536))
    while True:
        for source, from_end, target, to_end in ((near, here, far, there), (far, there, near, here)):
            while not (count := from_end.decrypt_into(room)):
                if not (data := source.recv(65536)):
                    return
                from_end.feed(memoryview(data))
            heard.append(bytes(room[:count]))
            target.sendall(to_end.encrypt(room[:count]))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data)) or _gone()
    assert data[8] == VERSION
    return data


def _gone() -> bytes:
    raise ConnectionError
