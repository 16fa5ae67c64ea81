"""Streams over sockets, one way each, that a thread moves by a compiled call; closing them under it is safe."""

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from gradtide.collective.links.links import end_sending, shut
from gradtide.errors import CommunicationError
from gradtide.kernels import BROKEN, KERNELS, WAITING, Piece, Stream, Transfer
from gradtide.transport.tls.sealed import meddling_with

__all__ = ["BrokenStream", "LinkSet", "Transfers"]

_ALL = -1  # to be waited for: all that leaves
_SLEEP_MS, _TURN_NS = 100, 100_000_000
_PUSH_NS = 200_000
_STAGE_BYTES = 256 << 10  # what has come and waits to be added up stays in the cache
_CLOSED = "the group was closed during an operation; wait for what you ask for"
_alive: "weakref.WeakSet[LinkSet]" = weakref.WeakSet()


class BrokenStream(Exception):
    """Which stream, by its number, and what the system says; and if what came was not what was sent, that."""

    def __init__(self, stream: int, error: int, meddling: str) -> None:
        super().__init__(os.strerror(error))
        self.stream, self.meddling = stream, meddling


class Transfers:
    """So many streams, for one thread at a time. Memory that is added must live until its piece is over."""

    def __init__(self, ends: Sequence[tuple[socket.socket, bool]], pieces: Sequence[int], *, adds_up: bool) -> None:
        """ends: of each stream its socket, and whether bytes leave by it; pieces: how many it has room for.

        adds_up: whether it may have to add up what arrives.
        """
        count = len(ends)
        polls = Transfer.WORDS + count * Stream.WORDS
        first = polls + count
        self._sockets = [link for link, _ in ends]
        self._words = np.zeros(first + Piece.WORDS * sum(pieces), np.int64)
        self._stages = np.empty(count * _STAGE_BYTES if adds_up else 0, np.uint8)
        self._address, stages = int(self._words.ctypes.data), int(self._stages.ctypes.data)
        self._rows = self._words[Transfer.WORDS : polls].reshape(count, Stream.WORDS)
        self._pieces = []
        for number, ((link, leaves), room) in enumerate(zip(ends, pieces, strict=True)):
            self._rows[number, [Stream.DESCRIPTOR, Stream.LEAVES]] = link.fileno(), leaves
            self._rows[number, Stream.PIECES] = self._address + 8 * first
            self._rows[number, Stream.STAGE] = stages + number * _STAGE_BYTES
            self._pieces.append(self._words[first : first + Piece.WORDS * room].reshape(room, Piece.WORDS))
            first += Piece.WORDS * room
        words = self._words
        words[Transfer.STREAMS], words[Transfer.ROWS] = count, self._address + 8 * Transfer.WORDS
        words[Transfer.POLLS], words[Transfer.STAGE_BYTES] = self._address + 8 * polls, _STAGE_BYTES
        self._turn, self._closed = threading.Lock(), False
        self._move = KERNELS.TRANSFER.entry

    def add(self, stream: int, address: int, size_bytes: int, combine: int = 0, item_bytes: int = 1) -> int:
        """One more piece; returns how many must be over for it to be. combine: a block that adds it up, or 0."""
        row = self._rows[stream]
        count = int(row[Stream.COUNT])
        self._pieces[stream][count] = address, size_bytes, combine, item_bytes
        row[Stream.COUNT] = count + 1
        return count + 1

    def forget(self, stream: int) -> None:
        """Makes room, once all pieces are over."""
        self._rows[stream, Stream.COUNT] = self._rows[stream, Stream.OVER] = 0

    @property
    def moved_bytes(self) -> int:
        """So far, on all streams."""
        return int(self._words[Transfer.MOVED])

    def wait(self, stream: int, until: int, look: Callable[[bool], None]) -> None:
        """Until so many pieces of a stream are over. Meanwhile everything moves, and look
        is called now and then: whether something has moved since; it may raise."""
        words, moved = self._words, int(self._words[Transfer.MOVED])
        while not self.move(stream, until):
            look(bool(words[Transfer.MOVED] != moved))
            moved = int(words[Transfer.MOVED])

    def move(self, stream: int, until: int) -> bool:
        """One turn of that: whether they are over."""
        return self._go_on(stream, until, _SLEEP_MS, _TURN_NS) != WAITING

    def push(self, sleep_ms: int) -> bool:
        """Moves what it can for a moment, and waits for so long if it can't; whether all that leaves has left."""
        return self._go_on(_ALL, 0, sleep_ms, _PUSH_NS) != WAITING

    def _go_on(self, stream: int, until: int, sleep_ms: int, turn_ns: int) -> int:
        """A turn of the compiled transfer. Descriptors must not be closed under it: their numbers would soon be those
        of other files."""
        words = self._words
        with self._turn:
            if self._closed:
                raise CommunicationError(_CLOSED)
            words[Transfer.AWAITED], words[Transfer.UNTIL] = stream, until
            words[Transfer.SLEEP_MS], words[Transfer.TURN_NS] = sleep_ms, turn_ns
            code = int(self._move(self._address))
        if code == BROKEN:
            if self._closed:
                raise CommunicationError(_CLOSED)
            broken = int(words[Transfer.BROKEN_STREAM])
            raise BrokenStream(broken, int(words[Transfer.ERROR]), meddling_with(self._sockets[broken]))
        return code

    def forbid(self) -> None:
        """Lets no turn follow."""
        self._closed = True

    def end(self) -> None:
        """After forbid(): the turn that another thread is in ends first, at once."""
        if not self._turn.acquire(blocking=False):
            shut(self._sockets)
            self._turn.acquire()
        self._turn.release()


class LinkSet:
    """Sockets to other ranks, and the streams over them."""

    def __init__(self, sockets: dict[int, socket.socket]) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._streams: weakref.WeakSet[Transfers] = weakref.WeakSet()
        self._lock, self._closed = threading.Lock(), False
        self.add(sockets)
        _alive.add(self)

    def add(self, sockets: dict[int, socket.socket]) -> None:
        with self._lock:
            for link in sockets.values():
                link.setblocking(False)
            self._sockets |= sockets
            if self._closed:
                self._close_sockets()

    def socket(self, rank: int) -> socket.socket:
        if (link := self._sockets.get(rank)) is None:
            raise CommunicationError(_CLOSED)
        return link

    def streams(self, ends: Sequence[tuple[int, bool]], pieces: Sequence[int], *, adds_up: bool) -> Transfers:
        """ends: a rank, and whether bytes leave for it or come from it; the rest is as in Transfers."""
        with self._lock:
            made = Transfers([(self.socket(rank), leaves) for rank, leaves in ends], pieces, adds_up=adds_up)
            self._streams.add(made)
            return made

    def shut(self) -> None:
        """Lets nothing arrive any more, and ends what waits for it."""
        shut(list(self._sockets.values()))

    def close(self) -> None:
        """What was sent still arrives."""
        with self._lock:
            self._closed, streams = True, list(self._streams)
            for each in streams:  # all of them first: who is told that one was closed gives up, and shuts the others
                each.forbid()
            for each in streams:
                each.end()
            self._close_sockets()

    def _close_sockets(self) -> None:
        end_sending(self._sockets.values())
        while self._sockets:
            _, link = self._sockets.popitem()
            with contextlib.suppress(OSError):
                while link.recv(1 << 20):  # what is left unread would make the kernel drop what we sent last
                    pass
            link.close()

    def forget_in_child(self) -> None:
        # A forked child must not keep a killed rank's links open. Who held the lock when it was forked is not here.
        for link in self._sockets.values():
            link.close()
        self._sockets.clear()


def _forget_in_child() -> None:
    for links in list(_alive):
        links.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
