import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE.parent / "collective", HERE):
    sys.path.insert(0, str(folder))  # the workers' processes import ranks and training by that name too

from ranks import Ranks  # noqa: E402

import gradtide  # noqa: E402


@pytest.fixture(scope="session")
def workers():
    """Four processes, kept for all tests that leave them as they were."""
    started = Ranks(4)
    yield started
    started.close()


@pytest.fixture(scope="module")
def stores(forks):
    """The address of two servers that are there for a file's tests; each trains under a name of its own."""
    with gradtide.local_servers(2, forks=forks) as servers:
        yield servers.address
