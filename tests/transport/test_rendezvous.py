import os
import socket
import threading

import pytest
import torch

from gradtide.errors import ConfigError, PeerLost, PeerTimeout
from gradtide.transport.memory import tensor_over
from gradtide.transport.rendezvous import Seat, join_host, listen

pytestmark = pytest.mark.quick


def _together(name, size):
    """Joins `size` threads; returns what each got."""
    got = [None] * size

    def join(rank):
        got[rank] = join_host(Seat(name, rank, size), 4096, 10)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_everybody_gets_the_same_memory_and_a_socket_to_everybody_else():
    joined = _together("same", 4)
    for rank, (_, mapping) in enumerate(joined):
        tensor_over(mapping, torch.uint8, (4,))[rank] = rank + 1
    for _, mapping in joined:
        assert tensor_over(mapping, torch.uint8, (4,)).tolist() == [1, 2, 3, 4]
    assert all(peers.gone() == [] for peers, _ in joined)
    joined[2][0].close()
    assert [joined[rank][0].gone() for rank in (0, 1, 3)] == [[2]] * 3
    for peers, _ in joined:
        peers.close()


def test_a_name_of_any_length_will_do():
    for peers, _ in _together("long " * 60, 2):
        peers.close()


def test_two_leaders_of_one_name_are_refused():
    with listen(Seat("twice", 0, 2)), pytest.raises(ConfigError, match="another rank 0 is waiting under that name"):
        listen(Seat("twice", 0, 2))


def test_a_member_without_a_leader_says_that_rank_0_is_missing():
    with pytest.raises(PeerTimeout, match=r"rank 0 did not join within 0\.05 s"):
        join_host(Seat("nobody", 1, 2), 4096, 0.05)


def test_a_leader_that_dies_while_the_group_forms_is_noticed():
    place = Seat("dying", 1, 2)
    listener = listen(Seat("dying", 0, 2))

    def die():
        peer, _ = listener.accept()
        assert peer.recv(100)  # one that dies before it hears us may be followed by another: then we try again
        peer.close()
        listener.close()

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(PeerLost, match="rank 0 of group 'dying' died"):
        join_host(place, 4096, 5)
    thread.join()


@pytest.mark.parametrize(("rank", "missing"), [(0, "1, 2"), (1, "0")])
def test_who_waits_long_for_others_to_join_says_so_once(rank, missing, capfd):
    with pytest.raises(PeerTimeout, match=f"rank {missing} did not join within 0.3 s"):
        join_host(Seat("long", rank, 3), 4096, 0.3, notice_s=0.1)
    said = f"gradtide: rank {rank} has waited 0.1 s for rank {missing} to join group 'long', which every rank does, "
    said += "and not only `if gradtide.is_main():`\n"
    assert capfd.readouterr().err == said


def test_a_stranger_that_talks_nonsense_does_not_disturb_the_group():
    got = []
    leader = threading.Thread(target=lambda: got.append(join_host(Seat("strange", 0, 2), 4096, 10)))
    leader.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        while stranger.connect_ex(Seat("strange", 0, 2).address):
            pass
        stranger.send(b"GET / HTTP/1.1")
        assert stranger.recv(100) == b""
    peers, _ = join_host(Seat("strange", 1, 2), 4096, 10)
    leader.join()
    peers.close()
    got[0][0].close()


def test_a_forked_child_does_not_keep_the_sockets_of_its_parent_open():
    (first, _), (second, _) = _together("forked", 2)
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        there.send(b"I am here")
        there.recv(1)  # lives until the parent has seen that the peer is gone
        os._exit(0)
    there.close()
    here.recv(9)
    first.close()
    assert second.gone() == [0]
    second.close()
    here.close()
    os.waitpid(child, 0)
