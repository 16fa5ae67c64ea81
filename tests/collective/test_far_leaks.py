"""Groups between hosts that are made, used and closed leave nothing behind: one rank on each of two namespaces."""

import gc
import os
import threading

import pytest
import torch
from namespaces import namespaces
from ranks import Ranks, move

from gradtide.collective.groups.group import Group
from gradtide.transport import hosts

SIZE = 2


@pytest.fixture
def apart():
    with namespaces(SIZE) as names:
        started = Ranks(SIZE)
        started.run(move, SIZE, names)
        try:
            yield started
        finally:
            started.close()


def held():
    """Descriptors, mappings of ours, threads, and files of this process in shared memory."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sum("gradtide" in line for line in maps)
    files = sum(str(os.getpid()) in name for name in os.listdir("/dev/shm"))
    return len(os.listdir("/proc/self/fd")), mapped, threading.active_count(), files


def many_groups(rank, size, count):
    """Collectives, messages now and in the background, from anybody, and a schedule; what is held more than before."""

    def one():
        with Group.from_environment(timeout_s=30) as group:
            group.all_reduce(group.shared_tensor(100))
            received = group.recv(torch.empty(50_000), None, async_op=True)
            group.send(torch.full((50_000,), float(rank)), 1 - rank)
            assert received.wait(30).eq(1 - rank).all()
            assert group.all_reduce(torch.ones(1000), strategy="ring", async_op=True).wait(30).eq(2).all()

    one()
    before = *held(), _keys_in_store()
    for _ in range(count):
        one()
    return [after - earlier for earlier, after in zip(before, (*held(), _keys_in_store()), strict=True)]


def _keys_in_store():
    """Of the launcher's, by which groups are joined."""
    with Group.from_environment(timeout_s=30) as group:
        group.barrier()  # each has deleted its own before
        (store,) = hosts._stores.values()
        found = store.num_keys()
        group.barrier()
        return found


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_groups_between_hosts_leave_no_descriptor_mapping_thread_or_file_and_no_key_in_the_store(apart, count):
    assert apart.run(many_groups, SIZE, count) == [[0, 0, 0, 0, 0]] * SIZE
