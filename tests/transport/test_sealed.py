"""Sealed sockets: plain ones to their owners, TLS on the wire."""

import contextlib
import os
import socket
import threading
import time

import pytest

from clock import at_most
from gradtide.transport.tls import TlsListener, call_tls
from gradtide.transport.tls.sealed import seal

LISTENER = TlsListener()
LATE_S = 10.0


class Relay(threading.Thread):
    """A wire that can be looked at, changed and torn: passes on what comes at one end, and keeps it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.left, one = socket.socketpair()
        self.right, other = socket.socketpair()
        self._ways = [(one, other), (other, one)]
        self.seen, self.change = bytearray(), lambda data: data
        self._threads = [threading.Thread(target=self._pass_on, args=way, daemon=True) for way in self._ways]
        for thread in self._threads:
            thread.start()

    def _pass_on(self, source, target):
        try:
            while data := source.recv(65536):
                self.seen += data
                target.sendall(self.change(data))
        except OSError:
            pass
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        for sock, _ in self._ways:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LATE_S)
            assert not thread.is_alive()
        for sock, _ in self._ways:
            sock.close()


@pytest.fixture
def wire():
    relay = Relay()
    yield relay
    relay.close()


def both_ends(wire):
    """Sealed, after TLS has begun on the two ends of the wire."""
    dials, listens = call_tls(), LISTENER.accept()
    wire.left.sendall(dials.shake(b""))
    while not (dials.finished and listens.finished):
        if not listens.finished:
            wire.right.sendall(listens.shake(wire.right.recv(65536)))
        if not dials.finished:
            wire.left.sendall(dials.shake(wire.left.recv(65536)))
    return seal(wire.left, dials, "rank 1"), seal(wire.right, listens, "rank 0")


def read_all(sock):
    found = bytearray()
    while data := sock.recv(1 << 20):
        found += data
    return bytes(found)


def test_megabytes_go_both_ways_at_once_and_nobody_on_the_way_can_read_them(wire):
    left, right = both_ends(wire)
    text = b"a word that must not be seen " * 100_000
    found = {}
    threads = [threading.Thread(target=end.sendall, args=(text,)) for end in (left, right)]
    threads += [
        threading.Thread(target=lambda n=n, e=e: found.update({n: e.recv(len(text), socket.MSG_WAITALL)}))
        for n, e in enumerate((left, right))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATE_S)
    assert found == {0: text, 1: text}
    assert len(wire.seen) > 2 * len(text)
    assert b"must not be seen" not in wire.seen
    left.close()
    right.close()


def test_what_was_written_arrives_though_its_end_is_closed_at_once(wire):
    left, right = both_ends(wire)
    text = os.urandom(3 << 20)
    reading = threading.Thread(target=lambda: found.append(read_all(right)))
    found = []
    reading.start()
    left.sendall(text)
    left.close()
    reading.join(LATE_S)
    assert found == [text]
    right.close()


def test_who_does_not_read_keeps_nobody_who_gives_up(wire):
    left, right = both_ends(wire)
    left.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while left.send(bytes(1 << 20)):
            pass
    begin = time.monotonic()
    left.shutdown(socket.SHUT_RDWR)
    left.close()
    assert time.monotonic() - begin < at_most(2)
    right.close()


def test_what_is_changed_on_the_way_ends_the_connection_and_is_said(wire, capfd):
    left, right = both_ends(wire)
    wire.change = lambda data: bytes([data[0], *data[1:-1], data[-1] ^ 1])
    left.sendall(b"hello")
    right.settimeout(LATE_S)
    assert right.recv(100) == b""
    left.close()
    right.close()
    assert "gradtide: the encrypted link to rank 0: what came was changed on the way" in capfd.readouterr().err


def test_ends_of_either_side_leave_no_thread_and_no_descriptor():
    def held():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = held()
    for closes_first in range(2):
        wire = Relay()
        ends = both_ends(wire)
        ends[closes_first].close()
        ends[1 - closes_first].settimeout(LATE_S)
        assert ends[1 - closes_first].recv(1) == b""
        ends[1 - closes_first].close()
        wire.close()
    wire = Relay()
    with pytest.warns(ResourceWarning):
        both_ends(wire)  # and nobody keeps them
    deadline = time.monotonic() + LATE_S
    while threading.active_count() > before[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    wire.close()
    assert held() == before


def test_a_forked_child_keeps_no_connection_open(wire):
    left, right = both_ends(wire)
    begun, ended = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        left.close()  # as their owners do; what is behind them they need not know of
        right.close()
        os.write(begun[1], b"x")
        os.close(ended[1])
        os.read(ended[0], 1)
        os._exit(0)
    os.read(begun[0], 1)
    left.close()
    right.settimeout(LATE_S)
    assert right.recv(1) == b""
    right.close()
    os.write(ended[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (*begun, *ended):
        os.close(descriptor)
