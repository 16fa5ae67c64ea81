"""Messages and schedules between hosts: the ranks of three network namespaces, two of them on the first."""

import os
import signal
import threading
import time

import cases
import pytest
import torch
from cases import DTYPES, group_of, same
from hypothesis import given, settings
from hypothesis import strategies as st
from namespaces import namespaces
from ranks import Ranks, move

from clock import at_most
from gradtide.collective.executors.choose import nominal_topology
from gradtide.collective.executors.execute import execute_in_process
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError, Mismatch
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.serialize import schedule_from_json, schedule_to_json

WHERE = [0, 0, 1, 2]
SIZE = len(WHERE)
LARGE = 6_000_011  # floats: more than the kernels of both ends take


def join(rank, size, port):
    os.environ["MASTER_PORT"] = str(port)
    if ("cases", size) in cases._groups:
        cases._groups.pop(("cases", size)).abort()
    cases._groups["cases", size] = Group.from_environment(timeout_s=30)


@pytest.fixture(scope="module")
def three_hosts():
    with namespaces(3) as hosts:
        yield [hosts[host] for host in WHERE]


def _started(hosts, port):
    started = Ranks(SIZE)
    started.run(move, SIZE, hosts)
    started.run(join, SIZE, port)
    return started


@pytest.fixture(scope="module")
def apart(three_hosts):
    started = _started(three_hosts, 29654)
    yield started
    started.close()


@pytest.fixture
def broken(apart):
    """The same, for a test that breaks the group: they get another one."""
    yield apart
    for process in apart.processes:
        os.kill(process.pid, signal.SIGCONT)
    apart.run(join, SIZE, 29654)


@pytest.fixture
def killed(three_hosts):
    """For a test that kills some of them."""
    started = _started(three_hosts, 29655)
    yield started
    started.close()


def content(source, target, count, dtype):
    values = torch.randint(-100, 100, (count,), generator=torch.Generator().manual_seed(source * 10 + target))
    return values.bool() if dtype == torch.bool else values.to(dtype)


# --- What arrives ---


def all_at_once(rank, size, kinds, sends_first):
    """Everybody to everybody, several messages each, taken in another order than they are sent in."""
    group, others = group_of(rank, size), [other for other in range(size) if other != rank]

    def send():
        return [
            group.send(content(rank, other, count, dtype), other, tag=tag, async_op=True)
            for tag, (dtype, count) in enumerate(kinds)
            for other in others
        ]

    sending = send() if sends_first else []
    got = {
        (other, tag): torch.empty(count, dtype=dtype)
        for tag, (dtype, count) in reversed(list(enumerate(kinds)))
        for other in others
    }
    receiving = [group.recv(tensor, other, tag=tag, async_op=True) for (other, tag), tensor in got.items()]
    for handle in receiving if sends_first else [*send(), *receiving]:
        handle.wait(30)
    for handle in sending:
        handle.wait(30)
    for (other, tag), tensor in got.items():
        dtype, count = kinds[tag]
        assert same(tensor, content(other, rank, count, dtype)), (other, tag)


@pytest.mark.parametrize("sends_first", [True, False])
def test_messages_of_every_type_and_odd_sizes_arrive_whole_both_ways_at_once(apart, sends_first):
    kinds = [(dtype, count) for dtype, count in zip(DTYPES, (0, 1, 3, 1023, 8191, 70_001) * 3, strict=False)]
    apart.run(all_at_once, SIZE, kinds, sends_first)


def test_large_messages_that_all_send_before_any_receives_arrive(apart):
    apart.run(all_at_once, SIZE, [(torch.float32, 700_001), (torch.float32, LARGE // 8)], True)


def in_place(rank, size):
    """From and into tensors that are not contiguous, of a shape that takes many words, and of other shapes."""
    group, deep = group_of(rank, size), (1,) * 50 + (7,)
    if rank == 0:
        group.send(torch.arange(7.0).view(deep), 3)
        group.send(torch.arange(12.0).view(3, 4).t(), 3)
    elif rank == 3:
        assert same(group.recv(torch.zeros(deep), 0), torch.arange(7.0).view(deep))
        assert same(group.recv(torch.zeros(8, 3)[::2], 0), torch.arange(12.0).view(3, 4).t())
    elif rank == 1:
        group.send(torch.ones(5), 2)
    else:
        with pytest.raises(Mismatch, match=r"rank 1 sent .*float32\[5\].* rank 2 receives .*float32\[6\]"):
            group.recv(torch.zeros(6), 1)
    group.barrier()


def test_messages_may_be_strided_and_what_does_not_fit_is_a_mismatch_that_the_group_survives(apart):
    apart.run(in_place, SIZE)


# --- From anybody ---


def from_anybody(rank, size, count):
    """Rank 0 takes what its neighbour on the host and ranks of two other hosts send, by tag, whoever is first."""
    group = group_of(rank, size)
    if rank:
        for tag in (2, 1):
            group.send(content(rank, tag, count, torch.float32), 0, tag=tag)
        group.barrier()
        return
    for tag in (1, 2):
        found = []
        for _ in range(1, size):
            receipt = group.recv(torch.empty(count), None, tag=tag, async_op=True)
            assert same(receipt.wait(30), content(receipt.source, tag, count, torch.float32))
            found.append(receipt.source)
        assert sorted(found) == [1, 2, 3]
    group.barrier()


@pytest.mark.parametrize("count", [3, 300_001])
def test_a_receive_from_anybody_takes_from_this_host_and_from_others(apart, count):
    apart.run(from_anybody, SIZE, count)


def nobody_sends(rank, size):
    group, begin = group_of(rank, size), time.monotonic()
    if rank:
        group.close()
        return None
    with pytest.raises(CommunicationError) as caught:
        group.recv(torch.empty(3), None, timeout_s=30)
    return type(caught.value).__name__, str(caught.value), time.monotonic() - begin


def test_a_receive_from_anybody_ends_when_all_others_on_all_hosts_have_left(broken):
    kind, text, taken_s = broken.run(nobody_sends, SIZE)[0]
    assert (kind, "every other rank died or left" in text) == ("PeerLost", True), text
    assert taken_s < at_most(2)


# --- When a rank dies, stops or leaves ---


def begin_sending(rank, size):
    cases._groups["sending"] = group_of(rank, size).send(torch.ones(4 * LARGE), 0, async_op=True)
    return os.getpid()


def see_it_begin(rank, size):
    """Until what rank 2 sends has begun to arrive."""
    while not group_of(rank, size)._backend.is_announced(2):
        time.sleep(0.001)


def call(rank, size, operation, timeout_s=30.0):
    group, begin = group_of(rank, size), time.monotonic()
    tensor = torch.ones(4 * LARGE)
    try:
        if operation == "recv from anybody":
            group.recv(tensor, None, timeout_s=timeout_s)
        elif operation == "recv":
            group.recv(tensor, 2, timeout_s=timeout_s)
        else:
            group.send(tensor, 2, timeout_s=timeout_s)
    except CommunicationError as error:
        return type(error).__name__, str(error), begin, time.monotonic()
    return "nothing", "", begin, time.monotonic()


def send(apart, rank, function, *arguments):
    apart._pipes[rank].send((function, SIZE, arguments))


@pytest.mark.parametrize("operation", ["recv", "recv from anybody"])
def test_a_sender_that_dies_in_the_middle_of_its_message_is_named(killed, operation):
    send(killed, 2, begin_sending)
    send(killed, 0, see_it_begin)
    assert killed.answer(0) is None
    os.kill(killed.answer(2), signal.SIGKILL)
    send(killed, 0, call, operation)
    kind, text, begin, end = killed.answer(0)
    assert (kind, "rank 2 died" in text, end - begin < at_most(1)) == ("PeerLost", True, True), text


def test_a_receiver_that_dies_in_the_middle_of_a_message_is_named(killed):
    send(killed, 0, call, "send")
    assert not killed._pipes[0].poll(0.3)
    died = time.monotonic()
    os.kill(killed.processes[2].pid, signal.SIGKILL)
    kind, text, _, end = killed.answer(0)
    assert (kind, "rank 2 died" in text, end - died < at_most(1)) == ("PeerLost", True, True), text


@pytest.mark.parametrize("operation", ["recv", "send"])
def test_a_rank_that_is_stopped_in_the_middle_of_a_message_is_named_at_the_deadline(broken, operation):
    send(broken, 2, begin_sending)
    send(broken, 0, see_it_begin)
    assert broken.answer(0) is None
    os.kill(broken.answer(2), signal.SIGSTOP)
    send(broken, 0, call, operation, 1.0)
    kind, text, begin, end = broken.answer(0)
    assert (kind, "rank 2 did not answer within 1 s" in text) == ("PeerTimeout", True), text
    assert f"{'receive from' if operation == 'recv' else 'send to'} rank 2: a message of float32[{4 * LARGE}]" in text
    assert 0.9 < end - begin < at_most(2.5)


def leave_early(rank, size):
    """Rank 2 sends one message and leaves; rank 0 takes it, and wants one more."""
    group = group_of(rank, size)
    if rank == 2:
        group.send(torch.ones(1000), 0)
        group.close()
    if rank == 0:
        assert group.recv(torch.zeros(1000), 2).eq(1).all()
        with pytest.raises(CommunicationError, match="rank 2 has left the group"):
            group.recv(torch.zeros(1000), 2)


def test_what_a_rank_sent_before_it_left_arrives_and_then_it_is_said_to_have_left(broken):
    broken.run(leave_early, SIZE)


def abort(rank, size):
    """Leaves with a receive and a send in the background that can't end."""
    group = group_of(rank, size)
    if rank:
        return 0.0
    handles = [group.recv(torch.ones(10), 3, async_op=True), group.send(torch.ones(4 * LARGE), 2, async_op=True)]
    begin = time.monotonic()
    group.abort()
    for handle in handles:
        with pytest.raises(CommunicationError, match="closed"):
            handle.wait(10)
    for thread in threading.enumerate():
        if "lane" in thread.name:
            thread.join(10)
    return time.monotonic() - begin


def test_a_group_that_is_aborted_ends_messages_of_its_own_background(broken):
    assert max(broken.run(abort, SIZE)) < at_most(2)


# --- Schedules ---


def _schedules():
    topology = nominal_topology(WHERE)
    devices = tuple(node.name for node in topology.nodes)
    for name in sorted(STRATEGIES):
        try:
            yield pytest.param(STRATEGIES[name](Request(topology, devices, 1 << 20)), id=name)
        except NotApplicable:
            continue


def by_schedule(rank, size, text, count, dtype, reduction, shared):
    schedule, group = schedule_from_json(text), group_of(rank, size)
    generators = [torch.Generator().manual_seed(r) for r in range(size)]
    inputs = [(torch.randn(count, generator=generator) * 30).to(dtype) for generator in generators]
    got = group.shared_tensor(count, dtype).copy_(inputs[rank]) if shared else inputs[rank].clone()
    group.all_reduce(got, reduction, strategy=schedule)
    expected = [tensor.clone() for tensor in inputs]
    execute_in_process(schedule, expected, reduction)
    assert same(got, expected[rank]), f"{got} is not {expected[rank]}"


@pytest.mark.parametrize("schedule", list(_schedules()))
def test_a_schedule_between_hosts_gives_the_bits_that_it_gives_on_the_devices_of_one_process(apart, schedule):
    text = schedule_to_json(schedule)

    @settings(max_examples=5, derandomize=True, deadline=None, database=None)
    @given(
        count=st.sampled_from([0, 1, 3, 1000, 70_001, 700_001]),
        dtype=st.sampled_from(DTYPES),
        reduction=st.sampled_from(["sum", "mean"]),
        shared=st.booleans(),
    )
    def run(count, dtype, reduction, shared):
        op = reduction if dtype.is_floating_point else "sum"
        apart.run(by_schedule, SIZE, text, count, dtype, op, shared)

    run()


def beside_messages(rank, size):
    """A schedule ends though a large message that nobody takes yet is on its way between the same ranks."""
    group, other = group_of(rank, size), size - 1 - rank
    sending = group.send(torch.full((LARGE,), float(rank)), other, async_op=True)
    assert group.all_reduce(torch.full((300_001,), 1.0 + rank), strategy="ring").eq(10).all()
    assert group.recv(torch.empty(LARGE), other).eq(other).all()
    sending.wait(30)


def test_a_schedule_does_not_wait_for_messages_that_nobody_takes_yet(apart):
    apart.run(beside_messages, SIZE)


def one_by_schedule(rank, size, timeout_s):
    group, begin = group_of(rank, size), time.monotonic()
    try:
        group.all_reduce(torch.ones(LARGE), strategy="ring", timeout_s=timeout_s)
    except CommunicationError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", 0.0


def test_a_rank_that_does_not_come_to_a_schedule_is_named_at_the_deadline(broken):
    for rank in (0, 1, 3):
        send(broken, rank, one_by_schedule, 1.0)
    for rank in (0, 1, 3):
        kind, text, taken_s = broken.answer(rank)
        assert kind == "PeerTimeout", text
        assert "rank 2 did not arrive at all_reduce(sum) by schedule" in text
        assert 0.9 < taken_s < at_most(2)


def die_connecting(rank, size):
    """Rank 2 dies as the links that a schedule needs are about to be made."""
    if rank == 2:
        group_of(rank, size)._runner._far._connect = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return one_by_schedule(rank, size, 30.0)


def test_a_rank_that_dies_while_links_for_a_schedule_are_made_is_named(killed):
    killed.start(die_connecting, SIZE)
    for rank in (0, 1, 3):
        kind, text, taken_s = killed.answer(rank)
        assert (kind, "rank 2 died or left during all_reduce(sum)" in text) == ("PeerLost", True), text
        assert taken_s < at_most(3)  # some of it for planning
