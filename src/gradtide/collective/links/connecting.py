"""How ranks of different hosts get links: TCP, and each end proves to the other that it knows the job's secret."""

import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.links import HostLinks
from gradtide.errors import PeerLost, PeerTimeout
from gradtide.transport.lifelines import connect_ranks

__all__ = ["Connect", "congestion_for", "connect_far", "connect_later", "open_links"]

_INFO_BYTES, _MIN_RTT = 160, 148  # of struct tcp_info, and where the shortest round trip (us) stands in it
_NEAR_US = 2000
_WELCOME = b"\1"
_PAUSES_S = (0.0005, 0.02)  # first and longest, between two looks into the store
Look = Callable[[], None]  # raises if there is no point in waiting
Connect = Callable[[str, Sequence[int], float, Look], dict[int, socket.socket]]


def congestion_for(lines: Iterable[socket.socket]) -> str:
    """By which of the kernel's ways links beside these lifelines avoid congestion; "": as the system does it.

    Where the system's way to avoid congestion is BBR, it spreads packets by timers. That is for long wires; on one of
    microseconds it cost half of the goodput (16 MB all-reduced between two namespaces on a busy machine: 28 to 38 ms
    with BBR, 10 to 23 without). So hosts that are near each other use what Linux does by default.
    """
    return "cubic" if all(_is_near(line) for line in lines) else ""


def connect_far(
    store: Any,
    purpose: str,
    rank: int,
    others: Sequence[int],
    address: str,
    timeout_s: float,
    congestion: str,
    look: Look | None = None,
) -> dict[int, socket.socket]:
    """A socket to each of these ranks, who name this one too. look: see connect_ranks."""
    sockets = connect_ranks(store, purpose, rank, others, address, timeout_s, congestion, look)
    _welcome(rank, sockets, timeout_s)
    for link in sockets.values():
        # Bulk waits in a link for as long as the other end computes, which is no reason for the kernel to give it up:
        # that a wire or a host is dead, the lifelines notice.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    return sockets


def connect_later(store: Any, rank: int, address: str, congestion: str) -> Connect:
    """How ranks of a group that runs get more links: purpose, others, how long it may take, and look."""

    def connect(purpose: str, others: Sequence[int], timeout_s: float, look: Look) -> dict[int, socket.socket]:
        # By a store of its own: another thread may be waiting in this one for a rank that waits for us.
        looking = _LookingStore(store.clone(), look)
        return connect_far(looking, purpose, rank, others, address, timeout_s, congestion, look)

    return connect


class _LookingStore:
    """A store of torch's in which who waits looks around: somebody may have died."""

    def __init__(self, store: Any, look: Look) -> None:
        self._store, self._look, self.set, self.get = store, look, store.set, store.get

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        deadline_s, pause_s = time.monotonic() + timeout.total_seconds(), _PAUSES_S[0]
        while not self._store.check(keys):
            self._look()
            if time.monotonic() >= deadline_s:
                raise RuntimeError(f"{keys} are not there")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSES_S[1])


def _welcome(rank: int, sockets: dict[int, socket.socket], timeout_s: float) -> None:
    """Who listened says that all have been let in; who dialled sends nothing before that."""
    other = -1
    try:
        for other in (other for other in sockets if other > rank):
            sockets[other].sendall(_WELCOME)
        for other in (other for other in sockets if other < rank):
            sockets[other].settimeout(timeout_s)
            if sockets[other].recv(len(_WELCOME)) != _WELCOME:
                raise ConnectionResetError
    except OSError as error:
        for link in sockets.values():
            link.close()
        if isinstance(error, TimeoutError):
            raise PeerTimeout(f"rank {other} did not join the job within {timeout_s:g} s; is it stuck?") from None
        raise PeerLost(f"rank {other} died while the job was joined; see its own output for why") from None


def open_links(rail: Sequence[int], sockets: dict[int, socket.socket], watch: RankWatch) -> HostLinks:
    return HostLinks(rail, sockets, watch)


def _is_near(line: socket.socket) -> bool:
    """By the shortest round trip so far."""
    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return len(info) >= _MIN_RTT + 4 and struct.unpack_from("<I", info, _MIN_RTT)[0] < _NEAR_US
