"""What happens on two hosts when ranks die, stop, disagree or leave: ranks 0 and 1 are on one, 2 and 3 on the other."""

import gc
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from ranks import Failed

from clock import at_most
from gradtide.collective.groups.group import Group
from gradtide.collective.links import connecting
from gradtide.errors import CommunicationError, Mismatch, PeerLost
from gradtide.testing.hosts import cut_wire

_kept = {}
SIZE = 4


def join(rank, size):
    _kept["group"] = Group.from_environment(timeout_s=30)
    _kept["group"].all_reduce(torch.ones(3))
    return os.getpid()


CALLS = {
    "all_reduce": lambda group, t, s: group.all_reduce(t, timeout_s=s),
    "hierarchical": lambda group, t, s: group.all_reduce(t, strategy="hierarchical", timeout_s=s),
    "all_to_all": lambda group, t, s: group.all_to_all(t, timeout_s=s),
    "recv": lambda group, t, s: group.recv(t, 3, timeout_s=s),
    "background": lambda group, t, s: group.all_reduce(t, async_op=True, timeout_s=s).wait(),
}


def call(rank, size, operation, absent=(), timeout_s=30.0, count=10):
    """Calls an operation that the absent never come to; says what came of it, and when."""
    if rank in absent:
        return None
    group, begin = _kept["group"], time.monotonic()
    try:
        CALLS[operation](group, torch.ones(size, count), timeout_s)
    except CommunicationError as error:
        return type(error).__name__, str(error), begin, time.monotonic()
    return "nothing", "", begin, time.monotonic()


def send(far, ranks, function, *arguments):
    for rank in ranks:
        far._pipes[rank].send((function, SIZE, arguments))


@pytest.mark.parametrize(
    ("killed", "operation"), [(3, "all_reduce"), (2, "all_to_all"), (0, "hierarchical"), (1, "background")]
)
def test_a_killed_rank_is_named_on_both_hosts_within_a_second(far, killed, operation):
    """Leaders and others; in one case of two before the others call the operation, else while they wait."""
    far.run(join, SIZE)
    others = [rank for rank in range(SIZE) if rank != killed]
    if killed % 2:
        send(far, range(SIZE), call, operation, [killed])
        assert far.answer(killed) is None
    died = time.monotonic()
    os.kill(far.processes[killed].pid, signal.SIGKILL)
    if not killed % 2:
        send(far, others, call, operation)
    for rank in others:
        kind, text, begin, end = far.answer(rank)
        assert kind == "PeerLost"
        assert f"rank {killed} died or left during all_" in text
        assert "float32[4, 10]" in text
        assert end - max(begin, died) < at_most(1)


def plan(rank, size, count):
    """Ahead of what is timed: it takes a second."""
    group = _kept["group"]
    group._runner.prepare(group.schedule("hierarchical", 4 * size * count))


@pytest.mark.parametrize("operation", ["all_reduce", "hierarchical"])
def test_a_rank_that_dies_in_the_middle_of_a_large_message_is_named(far, operation):
    far.run(join, SIZE)
    far.run(plan, SIZE, 2_000_000)
    send(far, range(SIZE), call, operation, (), 30.0, 2_000_000)  # 32 MB take 1.6 s at 20 MB/s
    assert not far._pipes[0].poll(0.5)
    died = time.monotonic()
    os.kill(far.processes[3].pid, signal.SIGKILL)
    for rank in (0, 1, 2):
        kind, text, _, end = far.answer(rank)
        assert (kind, end - died < at_most(1)) == ("PeerLost", True), text
        assert "rank 3 died or left during all_reduce(sum)" in text
        assert "float32[4, 2000000]" in text


def test_a_rank_that_waits_for_a_message_of_one_that_dies_is_told(far):
    far.run(join, SIZE)
    send(far, [0, 2], call, "recv")
    assert not far._pipes[0].poll(0.3)
    died = time.monotonic()
    os.kill(far.processes[3].pid, signal.SIGKILL)
    for rank in (0, 2):
        kind, text, _, end = far.answer(rank)
        assert (kind, "rank 3" in text, end - died < at_most(1)) == ("PeerLost", True, True), text


@pytest.mark.slow
def test_a_wire_that_is_cut_in_the_middle_of_a_schedule_is_noticed_in_seconds(far, two_hosts):
    far.run(join, SIZE)
    send(far, range(SIZE), call, "hierarchical", (), 1800.0, 2_000_000)
    assert not far._pipes[0].poll(0.5)
    with cut_wire(two_hosts):
        cut = time.monotonic()
        for rank in range(SIZE):
            kind, text, _, end = far.answer(rank)
            assert (kind, end - cut < at_most(8)) == ("PeerLost", True), (text, end - cut)


def connect_when_told(rank, size, folder, after):
    """The next links are made once the file `go` is there, or have been dialled by then and wait to be welcomed."""
    real = connecting.connect_ranks

    def connect(*arguments):
        made = real(*arguments) if after else None
        Path(folder, f"at {rank}").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        return made if after else real(*arguments)

    connecting.connect_ranks = connect


@pytest.mark.parametrize("after", [False, True])
def test_a_wire_that_is_cut_while_links_for_a_schedule_are_made_is_noticed_in_seconds(far, two_hosts, tmp_path, after):
    far.run(join, SIZE)
    far.run(plan, SIZE, 10)
    far.run(connect_when_told, SIZE, str(tmp_path), after)
    send(far, range(SIZE), call, "hierarchical", (), 1800.0)
    while len(list(tmp_path.glob("at *"))) < SIZE:
        assert not any(pipe.poll(0) for pipe in far._pipes)
        time.sleep(0.01)
    with cut_wire(two_hosts):
        (tmp_path / "go").touch()
        cut = time.monotonic()
        for rank in range(SIZE):
            kind, text, _, end = far.answer(rank)
            assert (kind, end - cut < at_most(8)) == ("PeerLost", True), (text, end - cut)
            assert any(f"{other}" in text for other in ((2, 3) if rank < 2 else (0, 1))), text


def test_a_host_whose_wire_is_cut_is_noticed_in_seconds_though_patience_is_long(far, two_hosts):
    """Nobody is told that it is cut: the kernels find out. Rank 0 waits for a message, the others in a collective."""
    far.run(join, SIZE)
    with cut_wire(two_hosts):
        cut = time.monotonic()
        send(far, [0], call, "recv", (), 1800.0)
        send(far, [1, 2, 3], call, "all_reduce", (), 1800.0)
        for rank in range(SIZE):
            kind, text, _, end = far.answer(rank)
            assert (kind, end - cut < at_most(8)) == ("PeerLost", True), (text, end - cut)
            assert any(f"{other}" in text for other in ((2, 3) if rank < 2 else (0, 1))), text


def test_ctrl_c_ends_a_wait_and_the_others_are_told_why(far):
    pids = far.run(join, SIZE)
    send(far, [0, 1, 2], call, "all_reduce")
    assert not far._pipes[0].poll(0.3)
    interrupted = time.monotonic()
    os.kill(pids[0], signal.SIGINT)
    with pytest.raises(Failed, match="KeyboardInterrupt"):
        far.answer(0)
    for rank in (1, 2):
        kind, text, _, end = far.answer(rank)
        assert (kind, end - interrupted < at_most(1)) == ("PeerLost", True), text
        assert "rank 0 gave up all_reduce(sum) of float32[4, 10] (KeyboardInterrupt)" in text


def test_a_death_is_noticed_though_its_own_host_is_busy_elsewhere(far):
    """Rank 2 leads the host of rank 3, which dies, and computes: nobody there waits for anything."""
    far.run(join, SIZE)
    send(far, [0, 1], call, "all_reduce")
    died = time.monotonic()
    os.kill(far.processes[3].pid, signal.SIGKILL)
    for rank in (0, 1):
        kind, text, begin, end = far.answer(rank)
        assert (kind, end - max(begin, died) < at_most(1)) == ("PeerLost", True), text
        assert "rank 3 died" in text
    send(far, [2], call, "all_reduce")
    kind, text, begin, end = far.answer(2)
    assert (kind, end - begin < at_most(1)) == ("PeerLost", True), text


@pytest.mark.parametrize("late", [[3], [2], [0, 3]])
@pytest.mark.parametrize("stopped", [True, False])
def test_ranks_that_do_not_arrive_are_named_on_both_hosts_at_the_deadline(far, late, stopped):
    pids = far.run(join, SIZE)
    others = [rank for rank in range(SIZE) if rank not in late]
    if stopped:
        for rank in late:
            os.kill(pids[rank], signal.SIGSTOP)
    send(far, others, call, "all_reduce", (), 1.0)
    for rank in others:
        kind, text, begin, end = far.answer(rank)
        assert kind == "PeerTimeout", text
        who = "ranks 0, 3" if len(late) > 1 else f"rank {late[0]}"
        assert f"{who} did not arrive at all_reduce(sum) of float32[4, 10] within 1 s" in text
        assert 0.9 < end - begin < at_most(2)  # who is a little earlier tells the others


def leave(rank, size, leaving, in_good_order):
    group = _kept["group"]
    if rank == leaving:
        group.close() if in_good_order else group.abort()
        return ""
    with pytest.raises(PeerLost) as caught:
        group.barrier()
    return str(caught.value)


@pytest.mark.parametrize("in_good_order", [True, False])
def test_a_rank_that_has_finished_is_told_from_one_that_died_on_both_hosts(far, in_good_order):
    far.run(join, SIZE)
    said = far.run(leave, SIZE, 2, in_good_order)
    for rank in (0, 1, 3):
        finished = r"rank 2 has finished \(left the group\) while rank [013] waits in barrier: give all workers as many"
        assert re.match(finished if in_good_order else "rank 2 died or left during barrier", said[rank]), said[rank]


def disagree(rank, size, other):
    group = _kept["group"]
    with pytest.raises(Mismatch, match=r"float32\[[34]\].*float32\[[34]\]") as caught:
        group.all_reduce(torch.ones(4 if rank == other else 3))
    assert group.all_reduce(torch.full((5,), float(rank))).eq(6).all()  # everybody saw it, so the group goes on
    return str(caught.value)


def test_a_mismatch_inside_a_host_or_between_hosts_shows_both_sides_to_all(far):
    far.run(join, SIZE)
    for other in range(SIZE):
        assert len(set(far.run(disagree, SIZE, other))) == 1


def many_groups(rank, size, count):
    """Groups that every rank leaves as soon as its own part is done; returns what is held more than before."""

    def held():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def one():
        with Group.from_environment(timeout_s=30) as group:
            group.all_reduce(torch.ones(10))

    one()
    before = held()
    for _ in range(count):
        one()
    return [after - earlier for earlier, after in zip(before, held(), strict=True)]


def test_ranks_may_leave_as_soon_as_they_are_done_and_leave_nothing_behind(far):
    assert far.run(many_groups, SIZE, 10) == [[0, 0]] * SIZE
