"""torch.distributed over gradtide on two hosts: network namespaces, as in test_hosts.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("given", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_runs_on_two_hosts_as_on_one_on_links_as_measured_or_as_given(two_hosts, given):
    environment = os.environ | {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29657",
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    }
    if given:
        environment["GRADTIDE_TOPOLOGY"] = "ethernet-cluster:2x2@1"
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", two_hosts[rank // 2], sys.executable, str(HERE / "c10d_host_rank.py")],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        outputs = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(text[-1500:] for _, text in outputs)
    name = "ethernet-cluster" if given else "probed"
    for said, _ in outputs:
        assert "mismatch: the hosts ask for different things" in said
        assert f"on one host: False; planned on {name}" in said
