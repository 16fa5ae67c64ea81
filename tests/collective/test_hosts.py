"""Two hosts: network namespaces joined by a veth pair that is limited to a given rate."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

RATE_BYTES = 20e6  # slow enough that the processors don't matter: 160 Mbit/s
HERE = Path(__file__).parent


def _ip(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True)


@pytest.fixture
def two_hosts():
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("two hosts need root, ip and tc (iproute2)")
    names = [f"gradtide-{os.getpid()}-{i}" for i in range(2)]
    with ExitStack() as stack:
        try:
            for name in names:
                _ip("ip", "netns", "add", name)
                stack.callback(_ip, "ip", "netns", "del", name)
            _ip("ip", "link", "add", "gt0", "netns", names[0], "type", "veth", "peer", "name", "gt1", "netns", names[1])
            for i, name in enumerate(names):
                inside = ("ip", "netns", "exec", name)
                _ip(*inside, "ip", "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"gt{i}")
                _ip(*inside, "ip", "link", "set", f"gt{i}", "up")
                _ip(*inside, "ip", "link", "set", "lo", "up")
                _ip(
                    *inside,
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    f"gt{i}",
                    "root",
                    "tbf",
                    "rate",
                    "160mbit",
                    "burst",
                    "32kb",
                    "latency",
                    "200ms",
                )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces can't be made here: {error.stderr.strip()}")
        yield names


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
