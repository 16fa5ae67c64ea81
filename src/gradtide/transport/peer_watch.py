"""The open sockets to the other processes of a group on this host: one that closes is a peer that died or left."""

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Sequence

from gradtide.errors import PeerLost, PeerTimeout

__all__ = ["PeerWatch"]

_alive: "weakref.WeakSet[PeerWatch]" = weakref.WeakSet()


class PeerWatch:
    """One socket a peer. Nobody watches them while nothing is awaited; a rank that waits asks `gone()` now and then."""

    def __init__(self, sockets: dict[int, socket.socket]) -> None:
        self._sockets = sockets
        self._poll, self._lock = select.poll(), threading.Lock()  # a poll object serves one thread at a time
        self._rank_of = {peer.fileno(): rank for rank, peer in sockets.items()}
        for descriptor in self._rank_of:
            self._poll.register(descriptor, select.POLLRDHUP)
        self.process = os.getpid()
        _alive.add(self)

    def gone(self) -> list[int]:
        """The ranks whose sockets are closed. Costs one system call. Several threads may ask at once."""
        with self._lock:
            closed = self._poll.poll(0)
        return sorted(self._rank_of[descriptor] for descriptor, _ in closed)

    def send_descriptor(self, descriptor: int) -> None:
        """Sends a descriptor to every peer."""
        for rank, peer in self._sockets.items():
            try:
                socket.send_fds(peer, [b"memory"], [descriptor])
            except OSError as error:
                raise PeerLost(f"rank {rank} is gone ({error.strerror}); memory could not be shared with it") from None

    def receive_descriptor(self, rank: int, timeout_s: float) -> int:
        """The next descriptor that `rank` sent."""
        peer = self._sockets[rank]
        peer.settimeout(max(0.001, timeout_s))
        try:
            _, descriptors, _, _ = socket.recv_fds(peer, 16, 1)
        except TimeoutError:
            raise PeerTimeout(f"rank {rank} did not send its shared memory within {timeout_s:g} s") from None
        except OSError as error:
            raise PeerLost(f"rank {rank} is gone ({error.strerror}) instead of sharing its memory") from None
        if not descriptors:
            raise PeerLost(f"rank {rank} is gone instead of sharing its memory; see its own output for why")
        return descriptors[0]

    def close(self) -> None:
        for peer in self._sockets.values():
            with contextlib.suppress(OSError):
                peer.close()
        self._sockets.clear()
        self._rank_of.clear()
        self._poll, self._lock = select.poll(), threading.Lock()  # a poll object serves one thread at a time


def _close_in_child() -> None:
    # A forked child (a data loader's, say) would keep a killed rank's sockets open: nobody would notice its death.
    survivors: Sequence[PeerWatch] = list(_alive)
    for peers in survivors:
        peers.close()


os.register_at_fork(after_in_child=_close_in_child)
