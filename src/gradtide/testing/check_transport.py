"""What every way to move bytes between two processes must do: one contract, run on each of them.

`check_transport(connect)`: `connect(credit_bytes)` gives the two ends of a new connection, the first with that much
credit to send bodies.
"""

import os
import threading
import time
from collections.abc import Callable
from random import Random

from gradtide.errors import Closed, PeerLost, PeerTimeout
from gradtide.transport.connection import UNLIMITED, Connection

__all__ = ["check_transport"]

Connect = Callable[[int], tuple[Connection, Connection]]
_LONG_S = 10.0


class Mailbox:
    """Receives messages with bodies of any length: the message says how long its body is."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.messages: list[tuple[bytes, bytes]] = []
        self._begun: tuple[bytes, bytearray] | None = None
        connection.on_messages(self._begin, self._filled)

    def _begin(self, message: memoryview) -> memoryview | None:
        data = bytes(message)
        size = int(data.split(b" ", 1)[0])
        if not size:
            self.messages.append((data, b""))
            return None
        self._begun = (data, bytearray(size))
        return memoryview(self._begun[1])

    def _filled(self) -> None:
        assert self._begun is not None
        self.messages.append((self._begun[0], bytes(self._begun[1])))
        self._begun = None

    def wait_for(self, count: int, sender: Connection) -> None:
        """Moves bytes on both ends until so many messages are here."""
        deadline_s = time.monotonic() + _LONG_S
        while len(self.messages) < count:
            assert time.monotonic() < deadline_s, f"{len(self.messages)} of {count} messages came"
            sender.flush()
            self.connection.receive()


def check_transport(connect: Connect) -> None:
    """Everything below, in turn."""
    checks = (
        _order_and_content, _bodies_in_parts, _two_threads, _woken, _credit, _timeout, _closed_here, _closed_there,
        _parted, _parted_from_one_that_hangs, _cut_in_two,
    )  # fmt: skip
    for check in checks:
        sender, receiver = connect(0 if check is _credit else UNLIMITED)
        try:
            check(sender, receiver)
        finally:
            sender.close()
            receiver.close()


def _order_and_content(sender: Connection, receiver: Connection) -> None:
    inbox, random = Mailbox(receiver), Random(1)
    sizes = [0, 1, 11, 4096, 70_000, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9_000_000, 0]
    bodies = [random.randbytes(size) for size in sizes]
    for i, body in enumerate(bodies):
        sender.send(b"%d number %d" % (len(body), i), [memoryview(body)] if body else [], len(body))
    inbox.wait_for(len(sizes), sender)
    assert [body for _, body in inbox.messages] == bodies
    assert [message.split()[2] for message, _ in inbox.messages] == [b"%d" % i for i in range(len(sizes))]


def _bodies_in_parts(sender: Connection, receiver: Connection) -> None:
    """A body of many buffers, and a message that is longer than a frame."""
    inbox, random = Mailbox(receiver), Random(2)
    parts = [random.randbytes(random.randrange(1, 3000)) for _ in range(3000)]
    whole = b"".join(parts)
    message = b"%d " % len(whole) + random.randbytes(300_000)
    sender.send(message, [memoryview(part) for part in parts], len(whole))
    inbox.wait_for(1, sender)
    assert inbox.messages == [(message, whole)]


def _two_threads(sender: Connection, receiver: Connection) -> None:
    """One thread sends while another receives, at both ends: as a client does."""
    ends, random = (sender, receiver), Random(3)
    inboxes, bodies = [Mailbox(end) for end in ends], [random.randbytes(200_000) for _ in range(40)]

    def send(end: Connection) -> None:
        for body in bodies:
            end.send(b"%d x" % len(body), [memoryview(body)], len(body))
            while end.can_flush:
                end.flush()

    threads = [threading.Thread(target=send, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _LONG_S
    while any(len(inbox.messages) < len(bodies) for inbox in inboxes) and time.monotonic() < deadline_s:
        for end in ends:
            end.receive()
    for thread in threads:
        thread.join(_LONG_S)
    for inbox in inboxes:
        assert [body for _, body in inbox.messages] == bodies


def _woken(sender: Connection, receiver: Connection) -> None:
    """Who waits before each look misses nothing: what poll does not show is not left behind."""
    inbox, random = Mailbox(receiver), Random(4)
    for i in range(1, 50):
        body = bytes(random.randrange(150_000, 300_000))  # begins in one recv and ends in another, with what follows
        sender.send(b"%d x" % len(body), [memoryview(body)], len(body))
        sender.send(b"0 last")
        while len(inbox.messages) < 2 * i:
            sender.flush()
            receiver.wait(_LONG_S, "the rest")
            receiver.receive()


def _credit(sender: Connection, receiver: Connection) -> None:
    """No body leaves without credit, and the order is kept."""
    inbox = Mailbox(receiver)
    Mailbox(sender)
    body = os.urandom(1000)
    sender.send(b"1000 waits", [memoryview(body)], 1000)
    sender.send(b"0 behind it")
    assert not sender.can_flush
    assert sender.queued_bytes > 1000
    assert not receiver.receive()
    receiver.give_credit(999)
    receiver.flush()
    sender.wait(_LONG_S, "credit")
    sender.receive()
    assert not receiver.receive()
    receiver.give_credit(1)
    receiver.flush()
    sender.wait(_LONG_S, "credit")
    sender.receive()
    inbox.wait_for(2, sender)
    assert [message for message, _ in inbox.messages] == [b"1000 waits", b"0 behind it"]
    assert sender.credit_bytes == 0
    assert sender.queued_bytes == 0


def _timeout(sender: Connection, receiver: Connection) -> None:
    Mailbox(sender)
    error = _expect(PeerTimeout, lambda: sender.wait(0.01, "push of 'w'"))
    assert sender.peer in error
    assert "push of 'w'" in error


def _closed_here(sender: Connection, receiver: Connection) -> None:
    Mailbox(sender)
    sender.close()
    _expect(Closed, lambda: sender.send(b"0 x"))
    _expect(Closed, sender.receive)
    _expect(Closed, lambda: sender.wait(1, "anything"))


def _closed_there(sender: Connection, receiver: Connection) -> None:
    inbox = Mailbox(receiver)
    sender.send(b"0 last words")
    sender.close()
    receiver.wait(_LONG_S, "last words")
    receiver.receive()
    assert len(inbox.messages) == 1
    error = _expect(PeerLost, lambda: _receive_until_lost(receiver))
    assert receiver.peer in error


def _parted(sender: Connection, receiver: Connection) -> None:
    """Who parts is back only when the other side has read everything, or when its time is over."""
    inbox, body = Mailbox(receiver), bytes(3_000_000)
    sender.send(b"0 one")
    sender.send(b"%d two" % len(body), [memoryview(body)], len(body))
    parting = threading.Thread(target=sender.part, args=(_LONG_S,))
    parting.start()
    _expect(PeerLost, lambda: _receive_until_lost(receiver))
    assert len(inbox.messages) == 2
    parting.join(0.05)
    assert parting.is_alive(), "it parted before the other side had closed"
    receiver.close()
    parting.join(_LONG_S)
    assert not parting.is_alive()
    assert sender.closed


def _parted_from_one_that_hangs(sender: Connection, receiver: Connection) -> None:
    sender.send(b"0 never read")
    sender.part(0.01)
    assert sender.closed


def _cut_in_two(sender: Connection, receiver: Connection) -> None:
    """A peer that breaks off within a message is lost, and the half message never arrives."""
    inbox = Mailbox(receiver)
    body = bytes(20_000_000)
    sender.send(b"%d big" % len(body), [memoryview(body)], len(body))
    receiver.wait(_LONG_S, "half a message")
    receiver.receive()
    sender.close()
    _expect(PeerLost, lambda: _receive_until_lost(receiver))
    assert not inbox.messages
    assert receiver.in_message


def _receive_until_lost(connection: Connection) -> None:
    while True:
        connection.wait(_LONG_S, "the end")
        connection.receive()


def _expect(kind: type[Exception], work: Callable[[], object]) -> str:
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")
