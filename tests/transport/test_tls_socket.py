"""A socket with TLS on it, by itself: two threads at once, and what is received in pieces of other sizes than sent."""

import contextlib
import errno
import hashlib
import itertools
import random
import select
import socket
import threading
import time

import pytest

from gradtide.transport.tls import TlsEnd, TlsListener, call_tls
from gradtide.transport.tls.tls_socket import TlsSocket

pytestmark = pytest.mark.quick

NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def shaken_ends():
    """Two, with the handshake of TLS behind them."""
    here, there = call_tls(), TlsListener().accept()
    flight = here.shake(b"")
    while not (here.finished and there.finished):
        flight = here.shake(there.shake(flight))
    return here, there


@contextlib.contextmanager
def tls_pair(watch=lambda end: end):
    """Both ends over loopback."""
    here, there = shaken_ends()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with dialled, accepted:
        yield TlsSocket(dialled, watch(here)), TlsSocket(accepted, watch(there))


def send_all(sock, data, sizes):
    """In messages of these sizes, as a Connection does: what has not left comes again, and first."""
    start = 0
    for size in sizes:
        left = data[start : start + size]
        start += size
        while left:
            try:
                left = left[sock.sendmsg([left[:7], left[7:]], (), NOW) :]
            except BlockingIOError:
                select.select([], [sock], [], 10)


def receive(sock, room):
    """What is there, or comes within ten seconds."""
    while True:
        try:
            return bytes(room[: sock.recv_into(room, 0, socket.MSG_DONTWAIT)])
        except BlockingIOError:
            if not sock.holds and not select.select([sock], [], [], 10)[0]:
                raise TimeoutError("nothing came") from None


class OneAtATime:
    """A TlsEnd that notes when two threads are in it at once, which OpenSSL may survive for long."""

    def __init__(self, end: TlsEnd) -> None:
        self._end, self._free, self.met = end, threading.Lock(), False

    @property
    def holds(self):
        return self._end.holds

    def _alone(self, work, data):
        if not self._free.acquire(blocking=False):
            self.met = True
            raise AssertionError("two threads used one end at once")
        try:
            return work(data)
        finally:
            self._free.release()

    def encrypt(self, data):
        return self._alone(self._end.encrypt, data)

    def feed(self, data):
        return self._alone(self._end.feed, data)

    def decrypt_into(self, target):
        return self._alone(self._end.decrypt_into, target)


def test_one_thread_sends_while_another_receives_and_both_get_all_of_it():
    until_s, data = time.monotonic() + 1.0, memoryview(random.Random(1).randbytes(3 << 20))
    sent, received, ends, failures = {}, {}, [], []

    def watch(end):
        ends.append(OneAtATime(end))
        return ends[-1]

    def guarded(work, sock, other):
        try:
            work(sock)
        except Exception as error:
            failures.append(error)
            for each in (sock, other):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # the other threads need not wait

    def sends(sock):
        digest, sizes = hashlib.sha256(), random.Random(2)
        for _ in itertools.takewhile(lambda _: time.monotonic() < until_s and not failures, itertools.count()):
            message = data[: sizes.choice((40, 4096, 70_000, len(data)))]
            send_all(sock, message, [len(message)])
            digest.update(message)
        sent[sock] = digest.digest()
        sock.shutdown(socket.SHUT_WR)

    def receives(sock):
        digest, room = hashlib.sha256(), memoryview(bytearray(300_000))
        while part := receive(sock, room):
            digest.update(part)
        received[sock] = digest.digest()

    with tls_pair(watch) as (near, far):
        threads = [
            threading.Thread(target=guarded, args=(work, sock, other))
            for sock, other in ((near, far), (far, near))
            for work in (sends, receives)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert not any(end.met for end in ends)
    assert received == {far: sent[near], near: sent[far]}


@pytest.mark.parametrize("room_bytes", [1, 1000, 16 << 10, 100_000, 1 << 20])
def test_what_was_sent_arrives_whatever_the_sizes_of_the_pieces(room_bytes):
    sizes = [1, 16 << 10, 40, 128 << 10, 5, 900_000, 300_001, 16 << 10]
    data = random.Random(3).randbytes(sum(sizes))[: sum(sizes) if room_bytes > 1 else 40_000]
    room, found = memoryview(bytearray(room_bytes)), b""
    with tls_pair() as (near, far):
        sender = threading.Thread(target=send_all, args=(near, memoryview(data), sizes))
        sender.start()
        while len(found) < len(data):
            found += receive(far, room)
        sender.join()
        assert found == data
        with pytest.raises(BlockingIOError):
            far.recv_into(room, 0, socket.MSG_DONTWAIT)
        assert not far.holds
        near.shutdown(socket.SHUT_WR)
        assert receive(far, room) == b""


class Breaks:
    """What a socket has received before its connection was reset."""

    def __init__(self, data):
        self._left = memoryview(data)

    def recv_into(self, target, size, flags):
        if not self._left:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        count = min(target.nbytes, len(self._left))
        target[:count], self._left = self._left[:count], self._left[count:]
        return count


def test_what_came_before_the_connection_broke_is_received_first():
    here, there = shaken_ends()
    data, room = random.Random(4).randbytes(1 << 20), memoryview(bytearray(2 << 20))
    sock = TlsSocket(Breaks(here.encrypt(data)[: 512 << 10]), there)  # as much as it receives at once, twice
    found = bytes(room[: sock.recv_into(room)])
    assert found == data[: 31 * (16 << 10)]  # of the 32nd record the end is missing
    with pytest.raises(ConnectionResetError):
        sock.recv_into(room)
