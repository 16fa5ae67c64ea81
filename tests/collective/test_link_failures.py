"""What happens to one compiled exchange between hosts when a rank dies, stops, leaves or gives up: one rank a host."""

import os
import signal
import threading
import time

import pytest
import torch
from namespaces import namespaces
from ranks import Failed, Ranks, move

from clock import at_most
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError, PeerLost

_kept = {}
SIZE = 3


@pytest.fixture(scope="module")
def three_hosts():
    with namespaces(SIZE) as hosts:
        yield hosts


@pytest.fixture
def apart(three_hosts):
    started = Ranks(SIZE)
    started.run(move, SIZE, three_hosts)
    yield started
    started.close()


def join(rank, size, count):
    """The second all-reduce of a kind goes the short way, and so do those of the tests."""
    _kept["group"] = Group.from_environment(timeout_s=30)
    for _ in range(3):
        _kept["group"].all_reduce(torch.ones(count))
    assert _kept["group"]._plans
    return os.getpid()


def call(rank, size, count, timeout_s=30.0, background=False):
    group, begin = _kept["group"], time.monotonic()
    try:
        done = group.all_reduce(torch.ones(count), timeout_s=timeout_s, async_op=background)
        done.wait(60) if background else None
    except CommunicationError as error:
        return type(error).__name__, str(error), begin, time.monotonic()
    return "nothing", "", begin, time.monotonic()


def send(apart, ranks, function, *arguments):
    for rank in ranks:
        apart._pipes[rank].send((function, SIZE, arguments))


@pytest.mark.parametrize("count", [10, 2_000_000])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("background", [False, True])
def test_a_killed_rank_is_named_within_a_second(apart, count, before, background):
    apart.run(join, SIZE, count)
    if not before:
        send(apart, [0, 1], call, count, 30.0, background)
        assert not apart._pipes[0].poll(0.3)
    died = time.monotonic()
    os.kill(apart.processes[2].pid, signal.SIGKILL)
    if before:
        send(apart, [0, 1], call, count, 30.0, background)
    for rank in (0, 1):
        kind, text, begin, end = apart.answer(rank)
        assert kind == "PeerLost", text
        assert f"rank 2 died or left during all_reduce(sum) of float32[{count}]" in text
        assert end - max(begin, died) < at_most(1)


@pytest.mark.parametrize("count", [10, 2_000_000])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_rank_that_does_not_come_is_named_at_the_deadline(apart, count, stopped):
    pids = apart.run(join, SIZE, count)
    if stopped:
        os.kill(pids[1], signal.SIGSTOP)
    send(apart, [0, 2], call, count, 1.0)
    for rank in (0, 2):
        kind, text, begin, end = apart.answer(rank)
        assert kind == "PeerTimeout", text
        assert f"rank 1 did not arrive at all_reduce(sum) of float32[{count}] within 1 s" in text
        assert 0.9 < end - begin < at_most(2)


def test_ctrl_c_ends_a_wait_and_the_others_are_told_why(apart):
    pids = apart.run(join, SIZE, 10)
    send(apart, [0, 1], call, 10)
    assert not apart._pipes[0].poll(0.3)
    interrupted = time.monotonic()
    os.kill(pids[0], signal.SIGINT)
    with pytest.raises(Failed, match="KeyboardInterrupt"):
        apart.answer(0)
    kind, text, _, end = apart.answer(1)
    assert (kind, end - interrupted < at_most(1)) == ("PeerLost", True), text
    assert "rank 0 gave up all_reduce(sum) of float32[10] (KeyboardInterrupt)" in text


def interrupted_at_once(rank, size):
    """Ctrl-C comes while the first call of the compiled exchange waits; the group must not be used after that."""
    group = _kept["group"]
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        with pytest.raises(KeyboardInterrupt):
            group.all_reduce(torch.ones(10))
        with pytest.raises(CommunicationError, match="can't be used any more"):
            group.all_reduce(torch.ones(10))
        return ""
    if rank == 1:
        with pytest.raises(PeerLost) as caught:
            group.all_reduce(torch.ones(10))
        return str(caught.value)
    return ""


def test_ctrl_c_in_the_first_moments_breaks_the_group_too(apart):
    apart.run(join, SIZE, 10)
    assert "rank 0 gave up" in apart.run(interrupted_at_once, SIZE)[1]


def leave(rank, size, in_good_order):
    group = _kept["group"]
    if rank == 2:
        group.close() if in_good_order else group.abort()
        return ""
    with pytest.raises(PeerLost) as caught:
        group.all_reduce(torch.ones(10))
    return str(caught.value)


@pytest.mark.parametrize("in_good_order", [True, False])
def test_a_rank_that_has_finished_is_told_from_one_that_gave_up(apart, in_good_order):
    apart.run(join, SIZE, 10)
    for text in apart.run(leave, SIZE, in_good_order)[:2]:
        assert ("rank 2 has finished (left the group)" if in_good_order else "rank 2 died or left during") in text


def abort(rank, size):
    """Leaves while its own background is in an exchange that can't end."""
    group = _kept["group"]
    if rank == 0:
        handle = group.all_reduce(torch.ones(10), async_op=True)
        while not group._backend._links._turn.locked():  # until it is in the compiled exchange
            time.sleep(0.001)
        begin = time.monotonic()
        group.abort()
        with pytest.raises(CommunicationError):
            handle.wait(10)
        return time.monotonic() - begin
    return 0.0


def test_a_group_that_is_aborted_ends_an_exchange_of_its_own_background(apart):
    apart.run(join, SIZE, 10)
    assert max(apart.run(abort, SIZE)) < at_most(2)


def many_groups(rank, size, count):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def one():
        with Group.from_environment(timeout_s=30) as group:
            for _ in range(3):
                group.all_reduce(torch.ones(10))

    one()
    before = held()
    for _ in range(count):
        one()
    return [after - earlier for earlier, after in zip(before, held(), strict=True)]


def test_groups_leave_nothing_behind(apart):
    assert apart.run(many_groups, SIZE, 5) == [[0, 0]] * SIZE


def slow(rank, size, count):
    """One rank comes late, with megabytes of the others' waiting for it."""
    if rank == 1:
        time.sleep(6.5)  # longer than the kernel waits for a wire that is dead
    return _kept["group"].all_reduce(torch.ones(count)).eq(size).all().item()


def test_a_rank_that_computes_for_seconds_finds_its_links_alive(apart):
    apart.run(join, SIZE, 8_000_000)
    assert all(apart.run(slow, SIZE, 8_000_000))
