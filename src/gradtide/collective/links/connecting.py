"""How ranks of different hosts get links: TCP, and each end proves to the other that it knows the job's secret."""

import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from gradtide.errors import PeerLost, PeerTimeout
from gradtide.processes.ready import can_read
from gradtide.transport.hosts import read_key
from gradtide.transport.lifelines import LinkEnd, connect_ranks

__all__ = ["FLOWS", "Connect", "agree_on_flows", "congestion_for", "connect_far", "connect_flows", "connect_later"]

_INFO_BYTES, _MIN_RTT = 160, 148  # of struct tcp_info, and where the shortest round trip (us) stands in it
_NEAR_US = 2000
FLOWS = "flows"  # the key under which rank 0 says how many there are
_WELCOME = b"\1"
_LOOK_S = 0.1
Look = Callable[[], None]  # raises if there is no point in waiting
Gather = Callable[[str], list[str]]  # what every rank says, a line each, in rank order
Connect = Callable[[str, Sequence[int], float, Look], dict[int, socket.socket]]


def congestion_for(lines: Iterable[socket.socket]) -> str:
    """By which of the kernel's ways links beside these lifelines avoid congestion; "": as the system does it.

    Where the system's way to avoid congestion is BBR, it spreads packets by timers. That is for long wires; on one of
    microseconds it cost half of the goodput (16 MB all-reduced between two namespaces on a busy machine: 28 to 38 ms
    with BBR, 10 to 23 without). So hosts that are near each other use what Linux does by default.
    """
    return "cubic" if all(_is_near(line) for line in lines) else ""


def connect_far(
    store: Any, end: LinkEnd, purpose: str, others: Sequence[int], timeout_s: float, look: Look | None = None
) -> dict[int, socket.socket]:
    """A socket to each of these ranks, who name this one too. look: see connect_ranks."""
    deadline_s = time.monotonic() + timeout_s
    sockets = connect_ranks(store, end, purpose, others, timeout_s, look)
    _welcome(end.rank, sockets, deadline_s, timeout_s, look)
    for link in sockets.values():
        # Bulk waits in a link for as long as the other end computes, which is no reason for the kernel to give it up:
        # that a wire or a host is dead, the lifelines notice.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    return sockets


def connect_later(end: LinkEnd, gather: Gather) -> Connect:
    """How ranks of a group that runs get more links: purpose, others, how long it may take, and look."""

    def connect(purpose: str, others: Sequence[int], timeout_s: float, look: Look) -> dict[int, socket.socket]:
        return connect_far(_Gathered(gather), end, purpose, others, timeout_s, look)

    return connect


class _Gathered:
    """What a store does for ranks that join, by a collective instead: all of them are in one, and a store that lies
    behind a wire that was cut answers nobody."""

    def __init__(self, gather: Gather) -> None:
        self._gather, self._told = gather, list[str]()

    def set(self, key: str, value: str) -> None:
        """Every rank says where it listens, once."""
        self._told = self._gather(value)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """All is here."""

    def get(self, key: str) -> bytes:
        return self._told[int(key.rpartition("/")[2])].encode()


def _welcome(
    rank: int, sockets: dict[int, socket.socket], deadline_s: float, timeout_s: float, look: Look | None
) -> None:
    """Who listened says that all have been let in; who dialled sends nothing before that."""
    other = -1
    try:
        for other in (other for other in sockets if other > rank):
            sockets[other].sendall(_WELCOME)
        for other in (other for other in sockets if other < rank):
            _hear_welcome(sockets[other], deadline_s, look)
    except BaseException as error:
        for link in sockets.values():
            link.close()
        if isinstance(error, TimeoutError):
            raise PeerTimeout(f"rank {other} did not join the job within {timeout_s:g} s; is it stuck?") from None
        if isinstance(error, OSError):
            raise PeerLost(f"rank {other} died while the job was joined; see its own output for why") from None
        raise


def _hear_welcome(link: socket.socket, deadline_s: float, look: Look | None) -> None:
    while not can_read([link.fileno()], min(_LOOK_S, max(0.0, deadline_s - time.monotonic()))):
        if look is not None:
            look()
        if time.monotonic() >= deadline_s:
            raise TimeoutError
    if link.recv(len(_WELCOME)) != _WELCOME:
        raise ConnectionResetError


def agree_on_flows(store: Any, rank: int, wanted: int, timeout_s: float) -> int:
    """How many connections collectives have between each two ranks: as many as rank 0 was told to make, or one."""
    if rank == 0:
        store.set(FLOWS, str(wanted or 1))
    return int(read_key(store, FLOWS, 0, timeout_s))


def connect_flows(
    count: int, connect: Callable[[str], dict[int, socket.socket]], opened: list[dict[int, socket.socket]]
) -> list[str]:
    """So many, each with a link to each rank; those that are open by the time somebody is lost are in `opened`. Returns
    what each is for."""
    purposes = [f"link {number}" for number in range(count)]
    opened.extend(map(connect, purposes))  # one at a time
    return purposes


def _is_near(line: socket.socket) -> bool:
    """By the shortest round trip so far."""
    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return len(info) >= _MIN_RTT + 4 and struct.unpack_from("<I", info, _MIN_RTT)[0] < _NEAR_US
