"""Groups that are joined through a store that others use too, or that earlier processes have used."""

import os
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from process_groups import register

from gradtide.collective.groups.group import Group

RESTARTED = """
import os, sys
import torch
import torch.distributed as dist
from gradtide.collective import Group
from gradtide.registration import register

register()
groups = [Group.from_environment(timeout_s=10), Group.from_environment(timeout_s=10)]
for group in groups:
    assert group.all_reduce(torch.full((3,), 1.0 + group.rank)).eq(3).all()
dist.init_process_group("gradtide")
dist.all_reduce(value := torch.ones(2))
assert value.eq(2).all()
one = [group.on_one_host for group in (*groups, dist.group.WORLD.group)]
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"started {count} {one}\\n".encode())
if count == "0":
    groups[0].barrier()
    os._exit(7)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
def test_workers_that_torchrun_starts_again_meet_on_the_agents_store(tmp_path):
    """A static rendezvous: the agent keeps its store, and with it all that the dead workers have said."""
    script = tmp_path / "restarted.py"
    script.write_text(RESTARTED)
    options = ["--nproc-per-node=2", "--max-restarts=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, "--monitor-interval=0.05", script],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("started")]
    assert sorted(said) == [f"started {count} [True, True, True]" for count in (0, 0, 1, 1)]


def restarted(rank, size, port):
    """One incarnation of a worker: its groups end, and others follow under the same names."""
    register()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with Group.from_environment(timeout_s=10) as group:
        sums = [group.all_reduce(torch.ones(2)).tolist()]
    with Group.from_environment(timeout_s=10) as group:
        sums.append(group.all_reduce(torch.ones(2)).tolist())
        one = group.on_one_host
    for _ in range(2):  # torch calls a group what it called the one before
        dist.init_process_group("gradtide")
        dist.all_reduce(value := torch.ones(2))
        sums.append(value.tolist())
        one = one and dist.group.WORLD.group.on_one_host
        dist.destroy_process_group()
    return one and sums == 4 * [[size, size]]


def test_what_is_left_in_a_store_misleads_nobody(fresh):
    """As torchrun's agent may hold it: of ranks that were other processes, and joined more groups or fewer."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for size in (2, 3, 2):
        assert fresh.run(restarted, size, str(store.port)) == size * [True]


def both(rank, size, port, torch_first):
    """A launcher that sets nothing but these, as Ray Train and Lightning do: rank 0 holds the store."""
    register()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    if torch_first:
        dist.init_process_group("gradtide")
    group = Group.from_environment(timeout_s=20)
    if not torch_first:
        dist.init_process_group("gradtide")
    dist.all_reduce(value := torch.ones(2))
    found = value.tolist(), group.all_reduce(torch.ones(2)).tolist(), group.on_one_host
    group.close()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("torch_first", [True, False])
def test_a_group_and_a_process_group_of_one_process_share_the_store(fresh, torch_first):
    assert fresh.run(both, 2, free_port(), torch_first) == 2 * [([2, 2], [2, 2], True)]
