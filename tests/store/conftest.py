import pytest

from gradtide.store.local import Forks, local_servers


@pytest.fixture(scope="session")
def forks():
    """One process with torch loaded makes the servers of all tests."""
    with Forks() as made:
        yield made


@pytest.fixture
def servers(forks):
    with local_servers(2, forks=forks) as started:
        yield started
