"""By which addresses ranks of different hosts find each other: IPv4 and IPv6, and what stands beside the group."""

import os
import subprocess

import pytest
import torch

from gradtide.collective.groups.device_group import _meet
from gradtide.collective.groups.group import Group
from gradtide.testing.hosts import INTERFACES


def join_at(rank, size, master):
    os.environ["MASTER_ADDR"] = master
    with Group.from_environment(timeout_s=20) as group:
        total = group.all_reduce(torch.full((100_003,), float(rank + 1)))
        store = _meet(group)  # for collectives on a device
        store.set(f"from {rank}", group.address())
        there = [store.get(f"from {other}").decode() for other in range(size)]
        group.barrier()
        return total.unique().tolist(), there


@pytest.mark.parametrize("network", ["10.77.0.", "fd00:77::"])
def test_ranks_of_two_hosts_meet_at_addresses_of_either_kind(far, two_hosts, network):
    if ":" in network:
        for number, (host, interface) in enumerate(zip(two_hosts, INTERFACES, strict=False)):
            address = ("ip", "-6", "addr", "add", f"{network}{number + 1}/64", "dev", interface, "nodad")
            subprocess.run(["ip", "netns", "exec", host, *address], check=True)
    there = [f"{network}{number}" for number in (1, 1, 2, 2)]
    assert far.run(join_at, 4, f"{network}1") == [([10.0], there)] * 4
