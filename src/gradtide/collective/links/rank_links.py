"""Messages to and from the ranks of other hosts, over a link between each two; who waits notices the dead and the late.

A message is an announcement (how long it is, its tag, what it says of itself) and the bytes of the tensor. Each
direction to each rank may be used by one thread at a time.
"""

import math
import select
import socket
import time
from collections.abc import Callable

import numpy as np
import torch

from gradtide.collective.host.announcement import HEAD_BYTES, TEXT_BYTES, Announcement, parse_head
from gradtide.collective.host.one_host import Call
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.transfers import BrokenStream, LinkSet, Transfers
from gradtide.errors import CommunicationError, PeerTimeout

__all__ = ["RankLinks"]

_SMALL_BYTES = 8 << 10  # the kernel takes so much at once, if it takes anything
_AT_HAND_BYTES = 64 << 10


class _Room:
    """Memory of an announcement, and where it is."""

    def __init__(self) -> None:
        self._array = np.empty(HEAD_BYTES + TEXT_BYTES, np.uint8)
        self.memory, self.address = self._array.data, int(self._array.ctypes.data)


class RankLinks:
    """This rank's ends of them."""

    def __init__(self, links: LinkSet, watch: RankWatch) -> None:
        self._links, self._watch = links, watch
        self._streams: dict[tuple[int, bool], Transfers] = {}  # by rank, and whether bytes leave
        self._rooms: dict[tuple[int, bool], _Room] = {}  # for announcements

    def send(self, call: Call, data: torch.Tensor, target: int, tag: int) -> None:
        """Returns once the bytes are with the kernel."""
        stream = self._stream(target, leaves=True)
        note, room = Announcement(len(data), tag, call.signature.text).packed(), self._room(target, leaves=True)
        room.memory[: len(note)] = note
        stream.forget(0)
        until = stream.add(0, room.address, len(note))
        if len(data):
            until = stream.add(0, data.data_ptr(), len(data))
        self._wait(stream, until, call, target, "send to")

    def has_room(self, size_bytes: int, target: int) -> bool:
        """Whether a message of this size could be sent without waiting."""
        if size_bytes > _SMALL_BYTES:
            return False
        poll = select.poll()
        poll.register(self._links.socket(target), select.POLLOUT)
        return bool(poll.poll(0))

    def is_announced(self, source: int) -> bool:
        """Whether a message has begun to arrive."""
        return bool(self._peek(source, 1))

    def is_at_hand(self, source: int) -> bool:
        """Whether a message has arrived, and is a small one."""
        data = self._peek(source, _AT_HAND_BYTES) or b""
        if len(data) < HEAD_BYTES:
            return False
        size_bytes, _, _, more_bytes = parse_head(data[:HEAD_BYTES])
        return len(data) >= HEAD_BYTES + more_bytes + size_bytes

    def is_gone(self, source: int) -> bool:
        """Whether nothing more will come: it left or died, and all that it sent has been taken."""
        return self._peek(source, 1) == b"" or self._watch.has_died(source)

    def progress(self, source: int) -> int:
        """Changes when something of a message has come."""
        return self._stream(source, leaves=False).moved_bytes

    def announced(self, call: Call, source: int) -> Announcement:
        """The next message's announcement. Then comes take()."""
        room = self._room(source, leaves=False)
        self._fill(call, room.address, HEAD_BYTES, source)
        try:
            size_bytes, tag, text, more_bytes = parse_head(bytes(room.memory[:HEAD_BYTES]))
        except ValueError as error:
            raise CommunicationError(f"rank {source} sent what is no message ({error}); is it of this job?") from None
        if more_bytes:
            self._fill(call, room.address, more_bytes, source)
            text += bytes(room.memory[:more_bytes])
        return Announcement(size_bytes, tag, text.decode(errors="replace"))

    def take(self, call: Call, data: torch.Tensor, source: int) -> None:
        """The bytes of the message that was announced."""
        self._fill(call, data.data_ptr(), len(data), source)

    def _fill(self, call: Call, address: int, size_bytes: int, source: int) -> None:
        stream = self._stream(source, leaves=False)
        stream.forget(0)
        stream.add(0, address, size_bytes)
        self._wait(stream, 1, call, source, "receive from")

    def _room(self, rank: int, *, leaves: bool) -> "_Room":
        found = self._rooms.get((rank, leaves))
        if found is None:
            found = self._rooms[rank, leaves] = _Room()
        return found

    def _stream(self, rank: int, *, leaves: bool) -> Transfers:
        found = self._streams.get((rank, leaves))
        if found is None:
            found = self._streams[rank, leaves] = self._links.streams([(rank, leaves)], [2], adds_up=False)
        return found

    def _wait(self, stream: Transfers, until: int, call: Call, rank: int, what: str) -> None:
        what = f"{what} rank {rank}: {call.signature.text}"
        try:
            if not stream.move(0, until):
                stream.wait(0, until, self._look(call, rank, what))
        except BrokenStream as error:
            if error.meddling:
                raise self._watch.meddling(rank, error.meddling) from None
            raise self._watch.loss_of(rank, what, str(error)) from None

    def _look(self, call: Call, rank: int, what: str) -> Callable[[bool], None]:
        """What who waits does now and then."""
        watch, begin, timeout_s = self._watch, time.monotonic(), call.timeout_s
        deadline, notice_at = begin + timeout_s, begin + watch.notice_s

        def look(moved: bool) -> None:
            nonlocal deadline, notice_at
            watch.check_alive(rank)
            if call.look is not None:
                call.look()
            now = time.monotonic()
            if moved:
                deadline = now + timeout_s
            if now >= notice_at:
                notice_at = math.inf
                watch.tell([rank], what)
            if now >= deadline:
                raise PeerTimeout(f"rank {rank} did not answer within {timeout_s:g} s ({what}); is it stuck?")

        return look

    def _peek(self, rank: int, size_bytes: int) -> bytes | None:
        """What has arrived and was not taken yet, up to so much; None if nothing has, empty if nothing ever will."""
        try:
            return self._links.socket(rank).recv(size_bytes, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""
