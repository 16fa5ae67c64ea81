"""Each receive ends at its own deadline, whatever else is waited for from the same rank, and takes the group with it.

Ranks 0 and 1 are on one network namespace, 2 and 3 on another: rank 1 receives from its own host, rank 3 from there.
"""

import time

import pytest
import torch
from namespaces import namespaces
from ranks import Ranks, move

from clock import at_most
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError, PeerTimeout

SIZE = 4
_kept = {}


@pytest.fixture(scope="module")
def apart():
    with namespaces(2) as hosts:
        started = Ranks(SIZE)
        started.run(move, SIZE, hosts)
        yield started
        started.close()


def join(rank, size):
    if "group" in _kept:
        _kept.pop("group").abort()
    _kept["group"] = Group.from_environment(timeout_s=30)
    _kept["group"].barrier()
    return _kept["group"]


RECEIVERS = (1, 3)


def behind_another(rank, size, first_source):
    """A short receive behind a long one, both from rank 0 or the first from anybody."""
    group = join(rank, size)
    if rank not in RECEIVERS:
        return None
    source = None if first_source == "anybody" else 0
    first = group.recv(torch.zeros(3), source, tag=1, async_op=True, timeout_s=20)
    begin = time.monotonic()
    with pytest.raises(PeerTimeout, match=r"rank 0 did not answer within 0\.5 s \(receive from rank 0: a message of"):
        group.recv(torch.zeros(4), 0, tag=2, timeout_s=0.5)
    taken_s = time.monotonic() - begin
    with pytest.raises(CommunicationError, match=r"can't be used any more|did not answer within 0\.5 s"):
        first.wait(10)
    with pytest.raises(CommunicationError, match="can't be used any more"):
        group.recv(torch.zeros(3), 0, tag=1)
    return taken_s


@pytest.mark.parametrize("first_source", ["rank 0", "anybody"])
def test_a_receive_ends_at_its_own_deadline_behind_another_from_the_same_rank(apart, first_source):
    found = apart.run(behind_another, SIZE, first_source)
    for rank in RECEIVERS:
        assert 0.45 < found[rank] < at_most(1.5)


def told_without_waiting(rank, size):
    """Nobody waits for the handles: they end by themselves, each at its own deadline or with the first."""
    group = join(rank, size)
    if rank not in RECEIVERS:
        return None
    begin, ends = time.monotonic(), {}
    handles = {}
    for tag, timeout_s in ((1, 20.0), (2, 0.4), (3, 10.0)):
        handles[tag] = group.recv(torch.zeros(3), 0, tag=tag, async_op=True, timeout_s=timeout_s)
        handles[tag].when_done(lambda error, tag=tag: ends.setdefault(tag, (time.monotonic() - begin, error)))
    for handle in handles.values():
        handle.ended(10)
    assert isinstance(ends[2][1], PeerTimeout)
    assert "rank 0 did not answer within 0.4 s" in str(ends[2][1])
    return [ends[tag][0] for tag in (1, 2, 3)]


def test_handles_that_nobody_waits_for_end_too(apart):
    found = apart.run(told_without_waiting, SIZE)
    for rank in RECEIVERS:
        assert all(0.35 < taken_s < at_most(1.5) for taken_s in found[rank])


def late_message(rank, size, count):
    """What comes for a receive that has ended goes neither into its memory nor to another one with the same tag."""
    group = join(rank, size)
    with Group.from_environment(timeout_s=30) as another:  # by which they tell each other when to go on
        mine, next_one = torch.zeros(count), torch.zeros(count)
        if rank in RECEIVERS:
            ended = group.recv(mine, 0, tag=2, async_op=True, timeout_s=0.3)
            other = group.recv(next_one, 0, tag=2, async_op=True, timeout_s=20)
            assert ended.ended(10)
            mine.fill_(7)
            assert other.ended(10)
            next_one.fill_(8)
            assert isinstance(ended.error(), PeerTimeout)
            assert isinstance(other.error(), CommunicationError)
        another.barrier()
        if rank == 0:
            for handle in [group.send(torch.ones(count), to, tag=2, async_op=True, timeout_s=1) for to in RECEIVERS]:
                handle.ended(10)
        another.barrier()
        return rank not in RECEIVERS or bool(mine.eq(7).all() and next_one.eq(8).all())


@pytest.mark.parametrize("count", [3, 300_000])
def test_what_comes_too_late_goes_into_nobodys_memory(apart, count):
    assert apart.run(late_message, SIZE, count) == [True] * SIZE


def behind_a_large_one(rank, size, count):
    """A receive whose message comes behind a large one that takes longer than its timeout."""
    group = join(rank, size)
    if rank == 0:
        group.send(torch.ones(count), 3, tag=1)
        group.send(torch.full((3,), 5.0), 3, tag=2)
    got = None
    if rank == 3:
        first = group.recv(torch.empty(count), 0, tag=1, async_op=True, timeout_s=1.0)
        second = group.recv(torch.empty(3), 0, tag=2, async_op=True, timeout_s=1.0)
        assert first.wait(30).eq(1).all()
        got = second.wait(30).tolist()
    group.barrier()
    return got


@pytest.fixture(scope="module")
def slow_wire():
    with namespaces(2, "80mbit") as hosts:
        started = Ranks(SIZE)
        started.run(move, SIZE, hosts)
        yield started
        started.close()


def test_the_time_in_which_a_large_message_arrives_does_not_count(slow_wire):
    assert slow_wire.run(behind_a_large_one, SIZE, 5_000_000)[3] == [5.0] * 3  # 2 s of 80 Mbit/s
