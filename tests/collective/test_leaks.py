import gc
import os
import threading

import pytest
import torch
from ranks import own

from gradtide.collective.groups.group import Group


def _held():
    with open("/proc/self/maps") as maps:
        mapped = sum("gradtide" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), mapped, threading.active_count()


def many_groups(rank, size, count):
    """Makes and destroys groups, shared tensors and background work; returns what is held more than before."""

    def one():
        with Group.join(own("leaks"), rank, size) as group:
            shared = group.shared_tensor(100)
            group.all_reduce(shared)
            group.all_reduce(torch.ones(10), async_op=True).wait()

    one()
    gc.collect()
    before = _held()
    for _ in range(count):
        one()
    gc.collect()
    return [after - earlier for earlier, after in zip(before, _held(), strict=True)]


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_groups_leave_no_descriptor_no_mapping_and_no_thread(ranks, count):
    assert ranks.run(many_groups, 2, count) == [[0, 0, 0]] * 2


def shared_memory_goes(rank, size):
    before = _held()[1]  # other tests' groups
    group = Group.join(own("segments"), rank, size)
    for _ in range(20):
        tensor = group.shared_tensor(1 << 20)
        view = tensor[5:10]
        del tensor
        group.all_reduce(view)
    held = _held()[1] - before
    del view
    left = _held()[1] - before
    group.close()
    return held, left


def test_shared_tensors_give_their_memory_back_when_they_go(ranks):
    assert ranks.run(shared_memory_goes, 2) == [(2, 1)] * 2  # the group's own and the last tensor's; then the group's


def survives_close(rank, size):
    group = Group.join(own("survives"), rank, size)
    tensor = group.shared_tensor(1000)
    group.close()
    del group
    gc.collect()
    return tensor.fill_(3).sum().item()


def test_a_shared_tensor_outlives_its_group(ranks):
    assert ranks.run(survives_close, 2) == [3000.0] * 2


@pytest.mark.parametrize("closed", [True, False])
def test_a_group_that_is_dropped_closes_its_sockets(closed):
    gc.collect()
    before = _held()
    group = Group.join("dropped", 0, 1)
    if closed:
        group.close()
    del group
    gc.collect()
    assert _held() == before
