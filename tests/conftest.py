import os

# Else torch's threads spin when they wait for each other: beside other lanes, four fifths of what they compute.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

from gradtide.store.local.servers import Forks

pytest_plugins = ["lanes", "leftovers"]


@pytest.fixture(scope="session")
def forks():
    """One process with torch loaded makes the servers of all tests."""
    with Forks() as made:
        yield made


@pytest.fixture(autouse=True)
def _threads_are_given_back():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
