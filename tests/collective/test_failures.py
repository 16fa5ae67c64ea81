"""What happens when ranks die, stop, disagree or are interrupted."""

import os
import resource
import signal
import threading
import time

import pytest
import torch
from ranks import Ranks, own

from clock import at_most
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError, ConfigError, Mismatch, PeerLost, PeerTimeout

_kept = {}


def join(rank, size, name, timeout_s=30.0):
    _kept["group"] = Group.join(own(name), rank, size, timeout_s=timeout_s)
    _kept["group"].all_reduce(torch.ones(3))
    return os.getpid()


def one_more(rank, size, operation, count, timeout_s=30.0):
    """Everybody but the last rank calls an operation that the last never comes to; says what came of it, and when."""
    if rank == size - 1:
        return None
    group, begin = _kept["group"], time.monotonic()
    tensor = torch.ones(size, count)
    calls = {
        "all_reduce": lambda: group.all_reduce(tensor, timeout_s=timeout_s),
        "all_to_all": lambda: group.all_to_all(tensor, timeout_s=timeout_s),
        "ring": lambda: group.all_reduce(tensor, strategy="ring", timeout_s=timeout_s),
        "recv": lambda: group.recv(tensor, size - 1, timeout_s=timeout_s),
        "background": lambda: group.all_reduce(tensor, async_op=True, timeout_s=timeout_s).wait(),
    }
    try:
        calls[operation]()
    except CommunicationError as error:
        cpu = resource.getrusage(resource.RUSAGE_SELF)
        return type(error).__name__, str(error), begin, time.monotonic(), cpu.ru_utime + cpu.ru_stime
    return "nothing", "", begin, time.monotonic(), 0.0


@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all", "ring", "recv", "background"])
@pytest.mark.parametrize("count", [10, 100_000])
def test_a_killed_rank_is_noticed_by_all_others_within_a_second(fresh, operation, count):
    fresh.run(join, 3, f"kill-{operation}-{count}")
    os.kill(fresh.processes[2].pid, signal.SIGKILL)
    died = time.monotonic()
    for rank in (0, 1):
        fresh._pipes[rank].send((one_more, 3, (operation, count)))
    for rank in (0, 1):
        kind, text, begin, end, _ = fresh.answer(rank)
        assert kind == "PeerLost"
        assert "rank 2 died or left during" in text
        assert ("a message" if operation == "recv" else "all_") in text
        assert end - max(begin, died) < at_most(1)


@pytest.mark.quick
def test_a_rank_that_dies_while_the_others_wait_is_noticed_within_a_second(fresh):
    fresh.run(join, 3, "kill-later")
    fresh.start(one_more, 3, "all_reduce", 10)
    assert fresh.answer(2) is None
    died = time.monotonic()
    os.kill(fresh.processes[2].pid, signal.SIGKILL)
    for rank in (0, 1):
        kind, text, _, end, _ = fresh.answer(rank)
        assert (kind, end - died < at_most(1)) == ("PeerLost", True), text


@pytest.mark.timing
def test_a_stopped_rank_is_a_timeout_at_the_deadline_that_names_it(fresh):
    pids = fresh.run(join, 3, "stop")
    os.kill(pids[2], signal.SIGSTOP)
    for rank in (0, 1):
        fresh._pipes[rank].send((one_more, 3, ("all_reduce", 10, 1.0)))
    for rank in (0, 1):
        kind, text, begin, end, _ = fresh.answer(rank)
        assert kind == "PeerTimeout"
        assert "rank 2 did not arrive at all_reduce(sum) of float32[3, 10] within 1 s" in text
        assert 1.0 <= end - begin < 1.25  # with a load of 5 on 2 cores: 1.001 to 1.023 s
    os.kill(pids[2], signal.SIGCONT)


def cpu_while_waiting(rank, size):
    if rank == size - 1:
        return 0.0
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(PeerTimeout):
        _kept["group"].all_reduce(torch.ones(3), timeout_s=1.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.timing
def test_a_rank_that_waits_costs_next_to_no_processor_time(fresh):
    fresh.run(join, 3, "idle")
    assert max(fresh.run(cpu_while_waiting, 3)) < 0.075  # 5 % of the wait, error texts included


def broken_stays_broken(rank, size):
    group = _kept["group"]
    if rank == 0:
        with pytest.raises(PeerTimeout):
            group.barrier(timeout_s=0.05)
        with pytest.raises(CommunicationError, match=r"can't be used any more \(PeerTimeout.*join a new one"):
            group.all_reduce(torch.ones(3))


def test_after_a_timeout_the_group_says_that_it_is_broken(fresh):
    fresh.run(join, 2, "broken")
    fresh.run(broken_stays_broken, 2)


def in_a_child(rank, size):
    """A forked child is told that it is not the rank that its parent is, also where the call would be a short one."""
    group, tensor = _kept["group"], torch.ones(3)
    group.all_reduce(tensor)
    child = os.fork()
    if child == 0:
        try:
            group.all_reduce(tensor)
        except CommunicationError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    group.all_reduce(tensor)


def test_a_forked_child_can_t_use_its_parent_s_group(fresh):
    fresh.run(join, 2, "forked")
    fresh.run(in_a_child, 2)


def left(rank, size):
    group = _kept["group"]
    if rank == 1:
        group.close()
        with pytest.raises(CommunicationError, match="it was closed"):
            group.barrier()
    else:
        with pytest.raises(
            PeerLost, match=r"rank 1 has finished \(left the group\) while rank 0 waits in barrier: .*shard.*join\(\)"
        ):
            group.barrier()


def test_a_rank_that_closed_its_group_is_missed_by_the_others(fresh):
    fresh.run(join, 2, "left")
    fresh.run(left, 2)


MISMATCHES = {
    "shape": (lambda g, r: g.all_reduce(torch.ones(3 + (r == 1))), r"float32\[3\].*float32\[4\]"),
    "dtype": (
        lambda g, r: g.all_reduce(torch.ones(3, dtype=torch.float64 if r == 1 else torch.float32)),
        r"ranks 0, 2: all_reduce\(sum\) of float32\[3\]; rank 1: all_reduce\(sum\) of float64\[3\]",
    ),
    "reduction": (lambda g, r: g.all_reduce(torch.ones(3), "max" if r == 1 else "sum"), r"sum.*max"),
    "operation": (
        lambda g, r: g.broadcast(torch.ones(3)) if r == 1 else g.all_reduce(torch.ones(3)),
        r"all_reduce\(sum\).*broadcast\(from 0\)",
    ),
    "root": (lambda g, r: g.broadcast(torch.ones(3), r), r"from 0.*from 1.*from 2"),
    "size": (lambda g, r: g.all_reduce(torch.ones(10_000_000 if r == 1 else 3)), r"float32\[3\].*\[10000000\]"),
    "strategy": (
        lambda g, r: g.all_reduce(torch.ones(99), strategy="tree" if r == 1 else "ring"),
        r"schedule ring.*schedule tree",
    ),
}


def disagree(rank, size, name):
    group, (call, pattern) = _kept["group"], MISMATCHES[name]
    with pytest.raises(Mismatch, match=pattern):
        call(group, rank)
    tensor = torch.full((5,), float(rank))
    assert group.all_reduce(tensor).eq(3).all()  # everybody saw it, so the group goes on


@pytest.mark.quick
def test_a_mismatch_shows_both_sides_on_every_rank_and_the_group_goes_on(fresh):
    fresh.run(join, 3, "mismatch")
    for name in MISMATCHES:
        fresh.run(disagree, 3, name)


def message_mismatch(rank, size):
    group = _kept["group"]
    if rank == 0:
        group.send(torch.ones(100_000), 1)
        group.send(torch.full((2,), 7.0), 1)
    else:
        with pytest.raises(
            Mismatch, match=r"rank 0 sent a message of float32\[100000\], but rank 1 receives .*int64\[3\]"
        ):
            group.recv(torch.ones(3, dtype=torch.int64), 0)
        assert group.recv(torch.zeros(2), 0).eq(7).all()


def test_a_message_that_does_not_fit_is_refused_and_the_next_one_arrives(fresh):
    fresh.run(join, 2, "messages")
    fresh.run(message_mismatch, 2)


def interrupted(rank, size):
    if rank == 0:
        me = threading.main_thread().ident
        timer = threading.Timer(0.2, signal.pthread_kill, [me, signal.SIGINT])
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            _kept["group"].all_reduce(torch.ones(3))
        assert time.monotonic() - begin < at_most(1)
        timer.join()


def test_ctrl_c_ends_a_wait_for_a_rank_that_never_comes(fresh):
    fresh.run(join, 2, "interrupted")
    fresh.run(interrupted, 2)


def crowded(rank, size):
    group = Group.join(own("crowded"), rank, size)
    tensor = torch.ones(1000)
    for _ in range(200):
        group.all_reduce(tensor, "mean")
    assert tensor.eq(1).all()
    group.close()


def test_eight_ranks_on_few_cores_make_progress():
    ranks = Ranks(8)
    try:
        begin = time.monotonic()
        ranks.run(crowded, 8)
        assert time.monotonic() - begin < at_most(30)
    finally:
        ranks.close()


def late(rank, size):
    if rank == 1:
        return ""
    with pytest.raises(PeerTimeout) as caught:
        Group.join(own("late"), rank, size, timeout_s=3)  # on a busy machine the other two need some of it
    return str(caught.value)


def test_a_group_that_does_not_come_together_says_who_is_missing_on_every_rank(fresh):
    texts = fresh.run(late, 3)
    assert all("rank 1 did not join within 3 s" in texts[rank] for rank in (0, 2))


def sizes_differ(rank, size):
    with pytest.raises(Mismatch, match=rf"rank 1 joined group '{own('sizes')}' with size 3, rank 0 with size 2"):
        Group.join(own("sizes"), rank, size + rank, timeout_s=10)


def test_ranks_that_disagree_about_the_size_are_told_at_once(fresh):
    fresh.run(sizes_differ, 2)


def test_a_single_rank_needs_nobody():
    with Group.join("alone", 0, 1) as group:
        assert group.all_reduce(torch.arange(3), "max").tolist() == [0, 1, 2]
        assert group.all_gather(torch.arange(2)).tolist() == [[0, 1]]
        assert group.all_reduce(torch.arange(3), strategy="auto").tolist() == [0, 1, 2]
        handle = group.all_reduce(torch.ones(2), async_op=True)
        assert handle.wait(5).tolist() == [1, 1]
        assert handle.done()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g: g.all_reduce(torch.ones(2), "median"), "no reduction is called 'median'"),
        (
            lambda g: g.all_reduce(torch.ones(2, dtype=torch.int32), "mean"),
            "the mean of int32 would have to be rounded",
        ),
        (lambda g: g.all_reduce(torch.ones(2), "band"), "torch has no band of float32"),
        (lambda g: g.broadcast(torch.ones(2), 3), "has ranks 0 to 0, not 3"),
        (lambda g: g.send(torch.ones(2), 0), "can't send to itself"),
        (lambda g: g.all_to_all(torch.ones(2, 2)), r"a row a rank, shape \(1, ...\)"),
        (lambda g: g.all_gather(torch.ones(2), out=torch.ones(3)), r"expected float32\[1, 2\], got float32\[3\]"),
        (lambda g: g.all_reduce(torch.ones(2), strategy="spiral"), "no strategy is called 'spiral'"),
        (lambda g: g.all_reduce(torch.ones(2).to_sparse()), "make it dense first"),
    ],
)
def test_a_mistake_is_one_line_and_does_not_break_the_group(call, text):
    with Group.join("mistakes", 0, 1) as group:
        with pytest.raises(ConfigError, match=text):
            call(group)
        group.barrier()
