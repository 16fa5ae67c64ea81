"""How ranks of different hosts get links: TCP, and each end proves to the other that it knows the job's secret."""

import socket
import struct
from collections.abc import Sequence
from typing import Any

from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.links import HostLinks
from gradtide.errors import PeerLost, PeerTimeout
from gradtide.transport.lifelines import connect_ranks

__all__ = ["connect_hosts", "open_links"]

_INFO_BYTES, _MIN_RTT = 160, 148  # of struct tcp_info, and where the shortest round trip (us) stands in it
_NEAR_US = 2000
_WELCOME = b"\1"


def connect_hosts(
    store: Any, rank: int, ranks: Sequence[int], address: str, lines: dict[int, socket.socket], timeout_s: float
) -> dict[int, socket.socket]:
    """A socket to each of these ranks: those of other hosts, and this one. lines: its lifelines, which tell how far.

    Where the system's way to avoid congestion is BBR, it spreads packets by timers. That is for long wires; on one of
    microseconds it cost half of the goodput (16 MB all-reduced between two namespaces on a busy machine: 28 to 38 ms
    with BBR, 10 to 23 without). So hosts that are near each other use what Linux does by default.
    """
    near = all(_is_near(lines[other]) for other in ranks if other != rank)
    sockets = connect_ranks(store, "link", rank, ranks, address, timeout_s, "cubic" if near else "")
    _welcome(rank, sockets, timeout_s)
    for link in sockets.values():
        # Bulk waits in a link for as long as the other end computes, which is no reason for the kernel to give it up:
        # that a wire or a host is dead, the lifelines notice.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    return sockets


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
