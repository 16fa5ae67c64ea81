"""Two hosts: network namespaces joined by a veth pair that is limited to a given rate."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RATE_BYTES = 20e6  # slow enough that the processors don't matter: 160 Mbit/s
HERE = Path(__file__).parent


@pytest.mark.slow  # it measures: beside other work the links and the processes share the cores
def test_hierarchical_on_two_hosts_takes_the_predicted_time(two_hosts):
    environment = os.environ | {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29653",
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    }
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", two_hosts[rank // 2], sys.executable, str(HERE / "host_rank.py")],
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
    found = [json.loads(text) for text, _ in outputs]
    assert found[0]["machines"] == {"rank0": "host0", "rank1": "host0", "rank2": "host1", "rank3": "host1"}
    assert all(found[0]["machines"] == other["machines"] for other in found)
    # What was probed is the rate that was set, but for headers and tbf's burst.
    assert all(0.8 * RATE_BYTES < rate < 1.3 * RATE_BYTES for rate in found[0]["between"]), found[0]["between"]
    print(found[0])
    ratio = found[0]["measured_s"] / found[0]["predicted_s"]
    assert 0.75 < ratio < 1.25, found[0]
