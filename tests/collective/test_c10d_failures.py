"""What torch.distributed's users see when ranks die, are late or disagree."""

import gc
import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from process_groups import process_group, start
from test_leaks import _held
from torch.nn.parallel import DistributedDataParallel

from clock import at_most
from gradtide.errors import Mismatch, PeerLost, PeerTimeout

_kept = {}


def prepare(rank, size, path, timeout_s=60):
    start(rank, size, path)
    model = torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(4)))
    _kept["ddp"] = DistributedDataParallel(model, bucket_cap_mb=0.005)
    for _ in range(3):  # the second time DDP makes other buckets, for which it calls other operations
        backward()
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=timeout_s))
    return os.getpid()


def backward():
    _kept["ddp"](torch.ones(2, 50)).sum().backward()


CALLS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(100_000)),
    "in the background": lambda: dist.all_reduce(torch.ones(10), async_op=True).wait(),
    "backward": backward,
    "barrier": dist.barrier,
    "recv": lambda: dist.recv(torch.ones(3), 2),
}


def one_more(rank, size, name):
    """Everybody but the last rank calls what the last never comes to; says what came of it, and when."""
    if rank == size - 1:
        return None
    begin = time.monotonic()
    try:
        CALLS[name]()
    except dist.DistBackendError as error:
        return isinstance(error, PeerLost), isinstance(error, PeerTimeout), str(error), begin, time.monotonic()
    return False, False, "nothing", begin, time.monotonic()


@pytest.mark.parametrize("name", CALLS)
def test_a_killed_rank_is_peer_lost_and_torch_s_error_within_a_second(fresh, tmp_path, name):
    fresh.run(prepare, 3, str(tmp_path / "store"))
    fresh.start(one_more, 3, name)
    assert fresh.answer(2) is None
    died = time.monotonic()
    os.kill(fresh.processes[2].pid, signal.SIGKILL)
    for rank in (0, 1):
        lost, _, text, begin, end = fresh.answer(rank)
        assert lost, text
        assert "rank 2 died or left during" in text
        assert ("all_reduce(sum)" in text) == (name in ("all_reduce", "in the background", "backward"))
        assert end - max(begin, died) < at_most(1)


def test_a_stopped_rank_is_a_timeout_that_names_it(fresh, tmp_path):
    pids = fresh.run(prepare, 3, str(tmp_path / "store"), 1.0)
    os.kill(pids[2], signal.SIGSTOP)
    for rank in (0, 1):
        fresh._pipes[rank].send((one_more, 3, ("backward",)))
    for rank in (0, 1):
        _, late, text, begin, end = fresh.answer(rank)
        assert late, text
        assert "rank 2 did not arrive at all_reduce(sum)" in text
        assert end - begin < at_most(2)
    os.kill(pids[2], signal.SIGCONT)


def disagree(rank, size, path):
    with process_group(rank, size, path):
        with pytest.raises(
            dist.DistBackendError, match=r"ranks 0, 2: .*float32\[3\]; rank 1: .*float32\[4\]"
        ) as caught:
            dist.all_reduce(torch.ones(4 if rank == 1 else 3))
        assert isinstance(caught.value, Mismatch)
        with pytest.raises(Mismatch, match=r"all_reduce\(sum\).*barrier"):
            dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(3), async_op=True).wait()
        if rank == 0:
            dist.send(torch.ones(3), 1)
        elif rank == 1:
            with pytest.raises(Mismatch, match=r"rank 0 sent a message of float32\[3\], but rank 1 receives .*\[4\]"):
                dist.recv(torch.ones(4), 0)
        dist.all_reduce(tensor := torch.ones(2))
        assert tensor.tolist() == [3, 3]  # everybody saw it, so the group goes on


def test_a_mismatch_shows_both_sides_and_the_group_goes_on(ranks, tmp_path):
    ranks.run(disagree, 3, str(tmp_path / "store"))


def many_groups(rank, size, path, count):
    """Makes and destroys process groups with work in the background; returns what is held more than before."""

    def one():
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(10), group=group, async_op=True).wait()
        dist.isend(torch.ones(70_000), 1 - rank, group=group)
        dist.recv(torch.ones(70_000), 1 - rank, group=group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)

    with process_group(rank, size, path):
        one()
        gc.collect()
        before = _held()
        for _ in range(count):
            one()
        gc.collect()
        return [max(0, after - earlier) for earlier, after in zip(before, _held(), strict=True)]


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_groups_leave_no_descriptor_no_mapping_and_no_thread(ranks, tmp_path, count):
    assert ranks.run(many_groups, 2, str(tmp_path / "store"), count) == [[0, 0, 0]] * 2
