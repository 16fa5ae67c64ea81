"""How the processes of a group on one host find each other and get shared memory and sockets between them.

The leader (local rank 0) listens on an abstract UNIX socket; the others connect. "Same host" means that this works, so
two network namespaces are two hosts. Once everybody is there the leader makes a socket pair for each two ranks and the
shared memory, and hands them out (SCM_RIGHTS). Each side checks that the other runs as the same user (SO_PEERCRED).

    hello    magic, rank, size           member to leader
    welcome  "memory" + descriptor,      leader to member, then one "peer" + rank + descriptor for each other rank
    refusal  "refuse" + text             leader to member, when the group can't come to be
"""

import contextlib
import hashlib
import math
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from gradtide.errors import CommunicationError, ConfigError, Mismatch, PeerLost, PeerTimeout
from gradtide.processes.credentials import user_of
from gradtide.transport.memory import create_memory, map_memory
from gradtide.transport.peer_watch import PeerWatch

__all__ = ["NOTICE_S", "Seat", "connect", "join_host", "listen", "missing_text"]

_MAGIC = b"gradtide-group-1"
_HELLO = struct.Struct("<16sII")
_MESSAGE_BYTES = 4096
NOTICE_S = 30.0  # who has waited as long says so, once
_STRANGER_S = 5.0  # a member says hello at once
_LOOK_S = 0.1
_RETRY_S = (0.0005, 0.02)  # first and longest pause between attempts to connect


@dataclass(frozen=True, slots=True)
class Seat:
    """This process's place in a group on one host."""

    name: str
    rank: int
    size: int

    @property
    def address(self) -> str:
        name = self.name.encode()
        short = self.name if len(name) < 80 else hashlib.blake2b(name, digest_size=16).hexdigest()
        return f"\0gradtide-{os.getuid()}-{short}"  # an address has room for 107 bytes


def join_host(
    place: Seat,
    memory_bytes: int,
    timeout_s: float,
    notice_s: float = NOTICE_S,
    look: Callable[[], None] | None = None,
) -> tuple[PeerWatch, mmap.mmap]:
    """Meets the others; returns the sockets to them and the memory that all of them see, zero-filled. look: called now
    and then by who waits; it may raise."""
    deadline = time.monotonic() + timeout_s
    if place.rank:
        with connect(place, deadline, timeout_s, notice_s, look) as leader:
            return _welcome(leader, place, memory_bytes, deadline, timeout_s)
    with listen(place) as listener:
        members = _gather(listener, place, timeout_s, notice_s, look)
    try:
        return _hand_out(members, place, memory_bytes)
    finally:
        _close_all(members)


def listen(place: Seat) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(place.address)
        listener.listen(place.size + 8)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"group {place.name!r} can't be opened ({error.strerror}): another rank 0 is waiting under that name; "
            "choose another name"
        ) from None
    return listener


def connect(
    place: Seat,
    deadline: float,
    timeout_s: float,
    notice_s: float = NOTICE_S,
    look: Callable[[], None] | None = None,
) -> socket.socket:
    """Connects to the leader, who may not be there yet, and says hello."""
    pause, notice_at = _RETRY_S[0], time.monotonic() + notice_s
    while True:
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            leader.connect(place.address)
            _check_user(leader, place)
            leader.send(_HELLO.pack(_MAGIC, place.rank, place.size))
            return leader
        except OSError:
            leader.close()
        except BaseException:
            leader.close()
            raise
        if time.monotonic() >= deadline:
            raise PeerTimeout(missing_text(place, [0], timeout_s))
        if time.monotonic() >= notice_at:
            _tell(place, [0], notice_s)
            notice_at = math.inf
        if look is not None:
            look()
        time.sleep(pause)
        pause = min(2 * pause, _RETRY_S[1])


def missing_text(place: Seat, missing: list[int], timeout_s: float) -> str:
    who = ", ".join(map(str, missing))
    return (
        f"group {place.name!r} of {place.size}: rank {who} did not join within {timeout_s:g} s; "
        "every rank must join, under the same name (not only `if gradtide.is_main():`); or raise timeout_s"
    )


def _check_user(leader: socket.socket, place: Seat) -> None:
    if (user := user_of(leader)) != os.getuid():
        raise CommunicationError(
            f"group {place.name!r} is held by user {user}, not by us ({os.getuid()}); choose another name"
        )


def _gather(
    listener: socket.socket, place: Seat, timeout_s: float, notice_s: float, look: Callable[[], None] | None
) -> dict[int, socket.socket]:
    """Waits until every member said hello."""
    members: dict[int, socket.socket] = {}
    began = time.monotonic()
    try:
        _admit_until(listener, place, members, began + min(notice_s, timeout_s), look)
        if len(members) < place.size - 1 and notice_s < timeout_s:
            _tell(place, _missing(place, members), notice_s)
        _admit_until(listener, place, members, began + timeout_s, look)
        if len(members) < place.size - 1:
            raise TimeoutError
    except TimeoutError:
        text = missing_text(place, _missing(place, members), timeout_s)
        _refuse(members, b"late", text)
        raise PeerTimeout(text) from None
    except Mismatch as error:
        _refuse(members, b"mism", str(error))
        raise
    except BaseException:
        _close_all(members)
        raise
    return members


def _admit_until(
    listener: socket.socket,
    place: Seat,
    members: dict[int, socket.socket],
    deadline: float,
    look: Callable[[], None] | None,
) -> None:
    """Until everybody is there, or it is late."""
    while len(members) < place.size - 1 and time.monotonic() < deadline:
        if look is not None:
            look()
        remaining_s = max(0.001, deadline - time.monotonic())
        listener.settimeout(remaining_s if look is None else min(remaining_s, _LOOK_S))
        try:
            peer, _ = listener.accept()
        except TimeoutError:
            continue
        _admit(peer, place, members)


def _missing(place: Seat, members: dict[int, socket.socket]) -> list[int]:
    return [rank for rank in range(1, place.size) if rank not in members]


def _tell(place: Seat, missing: list[int], notice_s: float) -> None:
    who = ", ".join(map(str, missing))
    line = f"gradtide: rank {place.rank} has waited {notice_s:g} s for rank {who} to join group {place.name!r}, "
    line += "which every rank does, and not only `if gradtide.is_main():`"
    print(line, file=sys.stderr, flush=True)


def _admit(peer: socket.socket, place: Seat, members: dict[int, socket.socket]) -> None:
    """Takes a member in. A stranger (another user, another program) is hung up on; a wrong size or rank ends it all."""
    if user_of(peer) != os.getuid():
        peer.close()
        return
    peer.settimeout(_STRANGER_S)
    try:
        hello = peer.recv(_HELLO.size)
    except TimeoutError:
        hello = b""
    if len(hello) != _HELLO.size or not hello.startswith(_MAGIC):
        peer.close()
        return
    _, rank, size = _HELLO.unpack(hello)
    problem = ""
    if size != place.size:
        problem = f"rank {rank} joined group {place.name!r} with size {size}, rank 0 with size {place.size}"
    elif rank in members or not 0 < rank < size:
        problem = f"two processes joined group {place.name!r} of {size} as rank {rank}"
    members[rank if not problem else -1] = peer
    if problem:
        raise Mismatch(f"{problem}; give every rank the same size and its own number")


def _refuse(members: dict[int, socket.socket], code: bytes, text: str) -> None:
    for peer in members.values():
        with contextlib.suppress(OSError):
            peer.send(code + text.encode()[: _MESSAGE_BYTES - 4])
    _close_all(members)


def _hand_out(members: dict[int, socket.socket], place: Seat, memory_bytes: int) -> tuple[PeerWatch, mmap.mmap]:
    """The leader's part of the welcome. A member's hello socket becomes its socket with the leader."""
    memory = create_memory(place.name, memory_bytes)
    try:
        for rank, peer in members.items():
            _pass(peer, b"mem0", memory, rank)
        for low in sorted(members):
            for high in (rank for rank in sorted(members) if rank > low):
                left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with left, right:
                    _pass(members[low], b"peer" + struct.pack("<I", high), left.fileno(), low)
                    _pass(members[high], b"peer" + struct.pack("<I", low), right.fileno(), high)
        kept = {rank: peer.dup() for rank, peer in members.items()}
        return PeerWatch(kept), map_memory(os.dup(memory), memory_bytes)
    finally:
        os.close(memory)


def _pass(peer: socket.socket, message: bytes, descriptor: int, rank: int) -> None:
    try:
        socket.send_fds(peer, [message], [descriptor])
    except OSError as error:
        raise PeerLost(f"rank {rank} died while joining ({error.strerror}); see its own output for why") from None


def _welcome(
    leader: socket.socket, place: Seat, memory_bytes: int, deadline: float, timeout_s: float
) -> tuple[PeerWatch, mmap.mmap]:
    """A member's part of the welcome."""
    memory, sockets = -1, {0: leader.dup()}
    try:
        for _ in range(place.size - 1):
            message, descriptor = _next_message(leader, place, deadline, timeout_s)
            if message == b"mem0":
                memory = descriptor
            else:
                sockets[struct.unpack("<I", message[4:])[0]] = socket.socket(fileno=descriptor)
        mapping = map_memory(memory, memory_bytes)
    except BaseException:
        _close_all(sockets)
        raise
    return PeerWatch(sockets), mapping


def _next_message(leader: socket.socket, place: Seat, deadline: float, timeout_s: float) -> tuple[bytes, int]:
    # The leader answers at its own deadline, which may be later than ours: leave it a moment to say who is missing.
    leader.settimeout(max(0.001, deadline + 0.5 - time.monotonic()))
    try:
        message, descriptors, _, _ = socket.recv_fds(leader, _MESSAGE_BYTES, 1)
    except TimeoutError:
        raise PeerTimeout(missing_text(place, [0], timeout_s)) from None
    except ConnectionError:
        message, descriptors = b"", []
    if message.startswith(b"late"):
        raise PeerTimeout(message[4:].decode())
    if message.startswith(b"mism"):
        raise Mismatch(message[4:].decode())
    if not descriptors:
        raise PeerLost(f"rank 0 of group {place.name!r} died while the group was forming; see its own output for why")
    return message, descriptors[0]


def _close_all(sockets: dict[int, socket.socket]) -> None:
    for peer in sockets.values():
        peer.close()
    sockets.clear()
