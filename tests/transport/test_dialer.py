"""One dialer for all who must not wait for a slow peer: over real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradtide.transport.authenticate import Address, dial, listen
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.dialer import Dialer, rest_s
from gradtide.transport.handshake import Handshake
from gradtide.transport.keys import Credentials

LATE_S = 20.0


@pytest.fixture
def place(tmp_path: Path) -> Address:
    tmp_path.chmod(0o700)
    return Address(path=f"{tmp_path}/s")


class Listener:
    """Somebody who listens and answers a handshake when it is told to."""

    def __init__(self, address: Address) -> None:
        self.sock = listen(address, Credentials())
        self.sock.settimeout(LATE_S)

    def accept(self) -> socket.socket:
        peer, _ = self.sock.accept()
        peer.settimeout(LATE_S)
        return peer

    def welcome(self, peer: socket.socket) -> None:
        handshake = Handshake(Credentials(), "server")
        while not handshake.done:
            if answer := handshake.feed(peer.recv(4096)):
                peer.sendall(answer)

    def nobody_else_came(self) -> bool:
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.sock.accept()[0].close()
            return False
        return True


class Owner:
    """Counts what is dialled, and is told of what arrives."""

    def __init__(self, again_s: float = 0.0, timeout_s: float = LATE_S) -> None:
        self.tries, self.told, self.timeout_s = 0, threading.Semaphore(0), timeout_s
        self.dialer: Dialer[Address] = Dialer(self._dial, self.told.release, again_s)

    def _dial(self, address: Address) -> Connection:
        self.tries += 1
        return open_connection(dial(address, Credentials(), "worker", self.timeout_s), str(address))

    def take(self) -> tuple[Address, Connection]:
        assert self.told.acquire(timeout=LATE_S)
        (found,) = self.dialer.take()
        return found


@contextlib.contextmanager
def listening(address: Address) -> Iterator[Listener]:
    listener = Listener(address)
    try:
        yield listener
    finally:
        listener.sock.close()


def attempts() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gradtide-dial"]


def wait_for_the_end_of_attempts() -> None:
    for thread in attempts():
        thread.join(LATE_S)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _no_attempt_is_left() -> Iterator[None]:
    assert not attempts()
    yield
    wait_for_the_end_of_attempts()


def test_what_was_refused_is_reached_when_somebody_listens(place: Address):
    owner = Owner()
    owner.dialer.want(place)
    wait_for_the_end_of_attempts()
    assert owner.dialer.take() == []
    assert owner.dialer.rested() == [place]
    assert owner.dialer.rested() == [], "each is named once"
    with listening(place) as listener:
        owner.dialer.want(place)
        with listener.accept() as peer:
            listener.welcome(peer)
            target, connection = owner.take()
            assert target == place
            connection.on_messages(lambda data: None, lambda: None)
            connection.send(b"hello")
            assert peer.recv(100).endswith(b"hello")
            owner.dialer.close()
            connection.send(b"again")
            assert peer.recv(100).endswith(b"again"), "what was taken is the owner's, not the dialer's"
            connection.close()
    assert owner.tries == 2
    assert not owner.told.acquire(blocking=False), "of failures nothing is said"


def test_a_target_rests_before_it_is_tried_again(place: Address):
    owner = Owner(again_s=3600)
    for _ in range(3):
        owner.dialer.want(place)
        wait_for_the_end_of_attempts()
    assert owner.tries == 1
    assert owner.dialer.rested() == []


def test_a_target_rests_also_when_it_was_reached(place: Address):
    owner = Owner(again_s=3600)
    with listening(place) as listener:
        owner.dialer.want(place)
        with listener.accept() as peer:
            listener.welcome(peer)
            owner.take()[1].close()
        owner.dialer.want(place)
        assert not attempts()
        assert listener.nobody_else_came()


def test_there_is_one_attempt_at_a_time_and_others_go_on_beside_a_slow_one(place: Address):
    owner, other = Owner(), Address(path=f"{place.path}2")
    with listening(place) as slow, listening(other) as fast:
        for _ in range(5):
            owner.dialer.want(place)
        with slow.accept() as silent:
            owner.dialer.want(other)
            with fast.accept() as peer:
                fast.welcome(peer)
                target, connection = owner.take()
                assert target == other
                connection.close()
            owner.dialer.want(place)
            assert slow.nobody_else_came()
            slow.welcome(silent)
            target, connection = owner.take()
            assert target == place
            connection.close()
    assert owner.tries == 2


def test_what_waits_to_be_taken_is_not_dialled_again(place: Address):
    owner = Owner()
    with listening(place) as listener:
        owner.dialer.want(place)
        with listener.accept() as peer:
            listener.welcome(peer)
            assert owner.told.acquire(timeout=LATE_S)
            owner.dialer.want(place)
            assert listener.nobody_else_came()
            ((_, connection),) = owner.dialer.take()
            connection.close()
    assert owner.tries == 1


def test_who_is_silent_is_given_up(place: Address):
    owner = Owner(timeout_s=0.05)
    with listening(place) as listener:
        owner.dialer.want(place)
        with listener.accept() as peer:
            wait_for_the_end_of_attempts()
            while peer.recv(4096):
                pass  # its end of the socket is closed, too
    assert owner.dialer.take() == []


def test_closing_does_not_wait_and_what_arrives_afterwards_is_closed(place: Address):
    owner = Owner()
    with listening(place) as listener:
        owner.dialer.want(place)
        with listener.accept() as peer:
            owner.dialer.close()
            assert attempts(), "it is still dialling"
            listener.welcome(peer)
            assert peer.recv(4096) == b""
        wait_for_the_end_of_attempts()
        owner.dialer.want(place)
        assert not attempts()
    assert owner.dialer.take() == []
    assert not owner.told.acquire(blocking=False)


def test_closing_closes_what_nobody_took(place: Address):
    owner = Owner()
    with listening(place) as listener:
        owner.dialer.want(place)
        with listener.accept() as peer:
            listener.welcome(peer)
            assert owner.told.acquire(timeout=LATE_S)
            owner.dialer.close()
            assert peer.recv(4096) == b""
    assert owner.dialer.take() == []


def test_a_target_is_tried_again_after_a_mistake_of_ours(place: Address, monkeypatch: pytest.MonkeyPatch):
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    owner = Owner(timeout_s="soon")  # type: ignore[arg-type]
    for _ in range(2):
        owner.dialer.want(place)
        wait_for_the_end_of_attempts()
    assert owner.tries == len(shown) == 2


def test_who_has_not_answered_for_long_is_tried_rarely():
    assert rest_s(0.05, 0.0) == rest_s(0.05, 0.9) == 0.05
    assert rest_s(0.05, 4.0) == pytest.approx(0.2)
    assert rest_s(0.05, 3600.0) == 1.0
    assert rest_s(5.0, 3600.0) == 5.0
