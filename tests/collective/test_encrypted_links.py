"""Links between hosts that a job asks to be encrypted: what is on the wire, what arrives, who is let in."""

import io
import os
import signal
import socket
import threading
import time
from contextlib import redirect_stderr

import pytest
import torch
from cases import same
from namespaces import namespaces
from ranks import Failed, Ranks, move

from clock import at_most
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError, ConfigError
from gradtide.testing.hosts import INTERFACES
from gradtide.transport.keys import make_secret_file

PATTERN = 1.2345678
_kept = {}


@pytest.fixture(scope="module")
def two_namespaces():
    with namespaces(2) as hosts:
        yield hosts


@pytest.fixture
def apart(two_namespaces):
    started = Ranks(2)
    started.run(move, 2, two_namespaces)
    yield started
    started.close()


@pytest.fixture
def secret(tmp_path):
    make_secret_file(tmp_path / "job.secret")
    return str(tmp_path / "job.secret")


def ask_for(rank, size, files, encrypt):
    """files and encrypt: of each rank."""
    os.environ |= {"GRADTIDE_SECRET_FILE": files[rank], "GRADTIDE_ENCRYPT": encrypt[rank]}


def everything(rank, size):
    """Every collective's result, whether the pattern in them was on the wire in clear, and what was said of that."""
    with redirect_stderr(io.StringIO()) as said:
        group = Group.from_environment()
    with group, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sniffer:
        sniffer.bind((INTERFACES[rank], 0))
        sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        mine = torch.randn(size, 200_001, generator=torch.Generator().manual_seed(rank))
        mine[:, :1000] = PATTERN
        found = [group.all_reduce(mine.clone()) for _ in range(3)]
        found += [group.all_reduce(mine[0, :77].clone()), group.broadcast(mine.clone(), 1), group.all_gather(mine)]
        found += [group.reduce_scatter(mine), group.all_to_all(mine)]
        group.barrier()
        sniffer.setblocking(False)
        seen = bytearray()
        try:
            while True:
                seen += sniffer.recv(1 << 17)
        except BlockingIOError:
            pass
    assert len(seen) > 1_000_000
    return found, torch.full((8,), PATTERN).numpy().tobytes() in seen, said.getvalue()


def test_nothing_of_a_tensor_can_be_read_on_the_wire_and_the_bits_are_the_same(apart, secret):
    apart.run(ask_for, 2, [secret] * 2, ["0"] * 2)
    in_clear = apart.run(everything, 2)
    assert all(was_seen for _, was_seen, _ in in_clear)
    assert in_clear[0][2].startswith(
        "gradtide: tensors between hosts go unencrypted; keep them on a network of your own"
    )
    apart.run(ask_for, 2, [secret] * 2, ["1"] * 2)
    sealed = apart.run(everything, 2)
    assert sealed[0][2] == "gradtide: tensors between hosts go encrypted (TLS 1.3)\n"
    for (found, was_seen, _), (plain, _, _) in zip(sealed, in_clear, strict=True):
        assert not was_seen
        assert all(same(one, other) for one, other in zip(found, plain, strict=True))


def join(rank, size):
    _kept["group"] = Group.from_environment(timeout_s=30)
    for _ in range(3):
        _kept["group"].all_reduce(torch.ones(2_000_000))


def call(rank, size):
    try:
        _kept["group"].all_reduce(torch.ones(2_000_000))
    except CommunicationError as error:
        return f"{type(error).__name__}: {error}", time.monotonic()
    return "nothing", time.monotonic()


def test_a_kill_is_noticed_as_without(apart, secret):
    apart.run(ask_for, 2, [secret] * 2, ["1"] * 2)
    apart.run(join, 2)
    apart._pipes[0].send((call, 2, ()))
    assert not apart._pipes[0].poll(0.3)
    died = time.monotonic()
    os.kill(apart.processes[1].pid, signal.SIGKILL)
    said, noticed = apart.answer(0)
    assert said.startswith("PeerLost: rank 1 died or left during all_reduce(sum) of float32[2000000]"), said
    assert noticed - died < at_most(1)


def refused(rank, size):
    try:
        Group.from_environment(timeout_s=2).close()
    except (CommunicationError, ConfigError) as error:
        return f"{type(error).__name__}: {error}"
    return "let in"


def test_who_does_not_ask_alike_or_has_another_secret_is_refused(apart, secret, tmp_path):
    make_secret_file(tmp_path / "other")
    apart.run(ask_for, 2, [secret, secret], ["1", "0"])
    said = apart.run(refused, 2)[1]
    assert said.startswith("ConfigError: rank 0 asks for encryption and rank 1 does not; set GRADTIDE_ENCRYPT alike")
    apart.run(ask_for, 2, [secret, str(tmp_path / "other")], ["1", "1"])
    assert apart.run(refused, 2)[1].startswith("AuthenticationError: wrong secret for tcp:10.77.0.1:")


def messages_and_a_schedule(rank, size):
    """And whether a link of them is anything but the plain end of a pair."""
    with Group.from_environment(timeout_s=30) as group:
        summed = group.all_reduce(torch.arange(1000.0), strategy="ring")
        handle = group.send(torch.full((300_000,), float(rank)), 1 - rank, async_op=True)
        got = group.recv(torch.empty(300_000), 1 - rank)
        handle.wait()
        links = [link for links in group._backend._link_sets for link in links._sockets.values()]
        sealed = bool(links) and all(link.family == socket.AF_UNIX for link in links)
        return summed.equal(2 * torch.arange(1000.0)) and got.eq(1 - rank).all().item() and sealed


def test_messages_and_schedules_are_encrypted_too(apart, secret):
    apart.run(ask_for, 2, [secret] * 2, ["1"] * 2)
    assert apart.run(messages_and_a_schedule, 2) == [True, True]


def many_groups(rank, size, count):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def one():
        with Group.from_environment(timeout_s=30) as group:
            group.all_reduce(torch.ones(1000))

    one()
    before = held()
    for _ in range(count):
        one()
    return [after - earlier for earlier, after in zip(before, held(), strict=True)]


def test_groups_leave_no_thread_and_no_descriptor(apart, secret):
    apart.run(ask_for, 2, [secret] * 2, ["1"] * 2)
    assert apart.run(many_groups, 2, 10) == [[0, 0]] * 2


def leave_at_once(rank, size):
    """Rank 0 has nothing to wait for when its last broadcast is written, and its process ends."""
    group = Group.from_environment(timeout_s=30)
    tensor = torch.full((4_000_000,), float(1 - rank))
    group.broadcast(tensor)
    if rank == 0:
        group.close()
        os._exit(0)
    return bool(tensor.eq(1).all())


def test_what_was_sent_arrives_though_its_rank_leaves_at_once(apart, secret):
    apart.run(ask_for, 2, [secret] * 2, ["1"] * 2)
    apart.start(leave_at_once, 2)
    assert apart.answer(1)
    with pytest.raises((Failed, EOFError)):
        apart.answer(0)
