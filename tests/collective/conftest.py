import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gradtide.errors import ConfigError
from gradtide.testing import hosts

sys.path.insert(0, str(Path(__file__).parent))  # the ranks' processes import cases by that name too

from ranks import Ranks, move


@pytest.fixture(scope="session")
def ranks():
    """Five processes, kept for all tests that leave them as they were."""
    started = Ranks(5)
    yield started
    started.close()


@pytest.fixture
def fresh():
    """Three processes for a test that does not leave them as they were."""
    started = Ranks(3)
    yield started
    started.close()


@pytest.fixture(scope="session")
def two_hosts():
    """Two network namespaces, 10.77.0.1 and 10.77.0.2, joined by a wire of 160 Mbit/s."""
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(hosts.two_hosts("160mbit"))
        except ConfigError as error:
            pytest.skip(str(error))
        yield [command[-1] for command in inside]


@pytest.fixture
def far(two_hosts):
    """Four ranks of a job that a launcher started: 0 and 1 on one host, 2 and 3 on the other."""
    started = Ranks(4)
    started.run(move, 4, two_hosts)
    yield started
    started.close()
