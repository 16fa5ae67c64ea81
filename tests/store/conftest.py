import pytest

from gradtide.store.local.servers import local_servers


@pytest.fixture
def servers(forks):
    with local_servers(2, forks=forks) as started:
        yield started
