import contextlib
import sys
from pathlib import Path

import pytest

from gradtide.errors import ConfigError
from leftovers import share

sys.path.insert(0, str(Path(__file__).parent))

from ray_cluster import Cluster

OURS = ("ray::AgentActor", "ray::StoreActor")


@pytest.fixture(scope="session")
def shared_cluster():
    pytest.importorskip("ray", reason="Ray is not installed: pip install gradtide[ray]")
    try:
        started = Cluster(4)
    except ConfigError as error:
        pytest.skip(str(error))
    yield started
    started.close()


@pytest.fixture
def cluster(shared_cluster):
    """A head and three nodes, kept for all tests; who kills one starts it again. What Ray itself has started since may
    stay, but nothing of gradtide's."""
    yield shared_cluster
    for node in range(len(shared_cluster.names)):
        for pid in shared_cluster.processes(node):
            if _is_rays_own(_command(pid)):
                share(pid)


def _is_rays_own(command: str) -> bool:
    return "site-packages/ray/" in command or (command.startswith("ray::") and not command.startswith(OURS))


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""
