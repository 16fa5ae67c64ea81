import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the ranks' processes import cases by that name too

from ranks import Ranks, move


@pytest.fixture(scope="session")
def ranks():
    """Five processes, kept for all tests that leave them as they were."""
    started = Ranks(5)
    yield started
    started.close()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


@pytest.fixture(scope="session")
def two_hosts():
    """Two network namespaces, 10.77.0.1 and 10.77.0.2, joined by a veth pair that is limited to 160 Mbit/s."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("two hosts need root, ip and tc (iproute2)")
    names = [f"gradtide-{os.getpid()}-{i}" for i in range(2)]
    with ExitStack() as stack:
        try:
            for name in names:
                _run(f"ip netns add {name}")
                stack.callback(_run, f"ip netns del {name}")
            _run(f"ip link add gt0 netns {names[0]} type veth peer name gt1 netns {names[1]}")
            for i, name in enumerate(names):
                inside = f"ip netns exec {name}"
                _run(f"{inside} ip addr add 10.77.0.{i + 1}/24 dev gt{i}")
                _run(f"{inside} ip link set gt{i} up")
                _run(f"{inside} ip link set lo up")
                _run(f"{inside} tc qdisc add dev gt{i} root tbf rate 160mbit burst 32kb latency 200ms")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces can't be made here: {error.stderr.strip()}")
        yield names


@pytest.fixture
def far(two_hosts):
    """Four ranks of a job that a launcher started: 0 and 1 on one host, 2 and 3 on the other."""
    started = Ranks(4)
    started.run(move, 4, two_hosts)
    yield started
    started.close()
