"""How the leaders of hosts get their links: TCP, and each end proves to the other that it knows the job's secret."""

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Any

from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.links import Links
from gradtide.transport.lifelines import connect_ranks

__all__ = ["connect_leaders", "open_links"]

_INFO_BYTES, _MIN_RTT = 160, 148  # of struct tcp_info, and where the shortest round trip (us) stands in it
_NEAR_US = 2000


def connect_leaders(
    store: Any, rank: int, leaders: Sequence[int], address: str, timeout_s: float
) -> dict[int, socket.socket]:
    """For a leader: a socket to each other one."""
    sockets = connect_ranks(store, "link", rank, leaders, address, timeout_s)
    for link in sockets.values():
        _tune(link)
    return sockets


def open_links(rank: int, leaders: Sequence[int], sockets: dict[int, socket.socket], watch: RankWatch) -> Links:
    return Links(leaders.index(rank), leaders, [sockets[other] for other in leaders if other != rank], watch)


def _tune(link: socket.socket) -> None:
    """Bulk waits in a link for as long as the other end computes, which is no reason to give it up: that a wire or a
    host is dead, the lifelines notice.

    Where the system's way to avoid congestion is BBR, it spreads packets by timers. That is for long wires; on one of
    microseconds it cost half of the goodput (16 MB all-reduced between two namespaces: 22 to 30 ms with BBR, 11 to 16
    without). So near ends use what Linux has by default.
    """
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) >= _MIN_RTT + 4 and struct.unpack_from("<I", info, _MIN_RTT)[0] < _NEAR_US:
        with contextlib.suppress(OSError):  # a system may not allow it
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
