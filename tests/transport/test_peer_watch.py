"""Whether a peer has died may be asked by several threads at once."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradtide.transport.peer_watch import PeerWatch

pytestmark = pytest.mark.quick


def test_several_threads_may_ask_at_once_who_is_gone():
    pairs = {rank: socket.socketpair() for rank in range(64)}
    peers = PeerWatch({rank: ours for rank, (ours, _) in pairs.items()})
    pairs[3][1].close()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [peers.gone() for _ in range(2000)], range(4)))
    assert all(gone == [3] for of_thread in found for gone in of_thread)
    peers.close()
    for _, theirs in pairs.values():
        theirs.close()
