"""Large bodies through shared memory: the same bytes in the same order, and nothing for who has no such memory."""

import os
import socket
from collections import deque
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtide.errors import ConfigError, FrameError
from gradtide.transport import shared_ring
from gradtide.transport.connection import Connection
from gradtide.transport.frames import PLACE
from gradtide.transport.shared_ring import SharedRing, make_ring, open_ring

MB = 1 << 20


def both_ends():
    made = make_ring()
    assert made is not None
    descriptor, first = made
    second = open_ring(descriptor)
    assert second is not None
    return first, second


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 4 * MB), st.sampled_from(["take", "take", 4 * MB, MB, 1])), max_size=60),
    st.booleans(),
)
def test_what_is_put_is_taken_in_order_and_unchanged(steps: list, backwards: bool):
    sender, receiver = reversed(both_ends()) if backwards else both_ends()
    lying: deque[tuple[bytes, int, bytes]] = deque()
    for number, step in enumerate(steps):
        if step == "take":
            if lying:
                place, size, edges = lying.popleft()
                body = receiver.take(memoryview(place), size)
                assert bytes(body[:1]) + bytes(body[-1:]) == edges
                receiver.give_back()
            continue
        body = bytearray(step)
        body[0], body[-1] = number % 251, (number + 7) % 251
        place = sender.put([memoryview(body)[: step // 2], memoryview(body)[step // 2 :]], step)
        if place is None:
            assert lying, "an empty ring has room for any frame"
        else:
            lying.append((place, step, bytes(body[:1]) + bytes(body[-1:])))
    for place, size, edges in lying:
        body = receiver.take(memoryview(place), size)
        assert bytes(body[:1]) + bytes(body[-1:]) == edges
        receiver.give_back()
    assert sender.put([memoryview(bytearray(4 * MB))], 4 * MB) is not None


@pytest.mark.parametrize("offset", [1 << 62, (16 << 20) - 9, 16 << 20])
def test_a_place_outside_of_the_memory_is_refused(offset: int):
    first, _ = both_ends()
    with pytest.raises(FrameError, match="outside"):
        first.take(memoryview(PLACE.pack(offset, 10)), 10)


class End:
    """One end of a connection that gathers what comes."""

    def __init__(
        self, sock: socket.socket, ring: SharedRing | None = None, *, opened: SharedRing | None = None
    ) -> None:
        self.connection = Connection(sock, "the other end", ring=ring)
        self.memory, self.came = bytearray(), []
        if opened is not None:
            self.connection.use_ring(opened)
        self.connection.on_messages(self._begin, self._filled)
        self.connection.flush()

    def _begin(self, message: memoryview) -> memoryview:
        self.came.append((bytes(message), b""))
        self.memory = bytearray(int(bytes(message)))
        return memoryview(self.memory)

    def _filled(self) -> None:
        self.came[-1] = (self.came[-1][0], bytes(self.memory))

    def send(self, body: bytes) -> None:
        self.connection.send(str(len(body)).encode(), [memoryview(body)], len(body))


@contextmanager
def pair(*, shared: bool):
    here, there = socket.socketpair()
    first, second = both_ends()
    ends = End(here, first), End(there, opened=second) if shared else End(there)
    try:
        yield ends
    finally:
        for end in ends:
            end.connection.close()


def talk(sender: End, receiver: End, bodies: list[bytes]) -> None:
    for body in bodies:
        sender.send(body)
    for _ in range(100_000):
        sender.connection.flush()
        receiver.connection.receive()
        if len(receiver.came) == len(bodies) and receiver.came[-1][1]:
            break
    assert [body for _, body in receiver.came] == bodies


BODIES = [os.urandom(size) for size in (3 * MB, 100, 64 << 10, 9 * MB, 4 * MB, 70_001, 5 * MB, 4 * MB, 12 * MB, 1)]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "not shared"])
def test_bodies_arrive_whole_and_in_order_both_ways(shared: bool):
    with pair(shared=shared) as (here, there):
        if shared:
            assert here.connection.receive(), "the word that it is open"
        puts = []
        for end in (here, there):
            ring = end.connection._ring
            if ring is not None:
                put = ring.put
                ring.put = lambda body, size, put=put: puts.append(found := put(body, size)) or found  # type: ignore
        talk(here, there, BODIES)
        talk(there, here, BODIES)
        if shared:
            assert None in puts, "what finds no room goes through the socket"
            assert sum(found is not None for found in puts) > 8
        else:
            assert puts == []


def test_nothing_is_shared_before_the_other_end_has_said_that_it_can_be():
    with pair(shared=True) as (here, there):
        ring = here.connection._ring
        ring.put = lambda body, size: pytest.fail("too early")  # type: ignore
        talk(here, there, [BODIES[0]])


def test_a_body_in_memory_that_is_not_there_is_refused():
    with pair(shared=True) as (here, there):
        here.connection.receive()
        there.connection._reader.forget_ring()
        here.send(BODIES[0])
        with pytest.raises(FrameError, match="not there"):
            there.connection.receive()


@pytest.mark.parametrize("place", [PLACE.pack(1 << 40, 5), PLACE.pack(16 << 20, 5), b"\xff" * PLACE.size])
def test_a_frame_with_a_wrong_place_is_refused(place: bytes):
    with pair(shared=True) as (here, there):
        here.connection.receive()
        here.connection._ring.put = lambda body, size: place  # type: ignore
        here.send(BODIES[0])
        with pytest.raises(FrameError, match="outside"):
            there.connection.receive()


def test_what_waited_for_credit_and_was_copied_meanwhile_goes_through_the_memory_too():
    here, there = socket.socketpair()
    first, second = both_ends()
    sender, receiver = End(here, first), End(there, opened=second)
    try:
        sender.connection.receive()
        sender.connection.credit_bytes = 0
        body = bytearray(BODIES[0])
        sender.connection.send(str(len(body)).encode(), [memoryview(body)], len(body))
        sender.connection.keep_copies()
        body[:] = bytes(len(body))
        receiver.connection.give_credit(16 * MB)
        receiver.connection.flush()
        sender.connection.receive()
        assert sender.connection.queued_bytes == 0
        receiver.connection.receive()
        assert [body for _, body in receiver.came] == [BODIES[0]]
    finally:
        sender.connection.close()
        receiver.connection.close()


def test_memory_that_can_not_be_mapped_leaves_no_descriptor(monkeypatch):
    def fails(descriptor: int, size_bytes: int) -> None:
        os.close(descriptor)
        raise ConfigError("no room")

    monkeypatch.setattr(shared_ring, "map_memory", fails)
    before = len(os.listdir("/proc/self/fd"))
    assert make_ring() is None
    assert len(os.listdir("/proc/self/fd")) == before
