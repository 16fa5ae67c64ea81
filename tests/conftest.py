import pytest
import torch


@pytest.fixture(autouse=True)
def _threads_are_given_back():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
