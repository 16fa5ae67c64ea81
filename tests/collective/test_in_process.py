import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtide.collective import STRATEGIES, all_reduce
from gradtide.errors import ConfigError


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(derandomize=True, max_examples=40, deadline=None)
@given(devices=st.integers(1, 5), shape=st.lists(st.integers(0, 7), max_size=3), seed=st.integers(0, 99))
def test_every_device_ends_with_the_sum_in_the_order_of_the_devices(strategy, devices, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) for _ in range(devices)]
    expected = tensors[0].clone()
    for tensor in tensors[1:]:
        expected += tensor
    all_reduce(tensors, strategy)
    for tensor in tensors:
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize(("strategy", "factor"), [("root", 6), ("host", 8), ("sharded", 6)])
def test_the_bytes_between_devices_are_those_of_the_textbook(strategy, factor):
    tensors = [torch.ones(100) for _ in range(4)]
    assert all_reduce(tensors, strategy) == factor * 400


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16])
def test_other_dtypes_add_up(dtype):
    tensors = [torch.arange(10).to(dtype) for _ in range(3)]
    all_reduce(tensors, "sharded")
    assert torch.equal(tensors[1], (3 * torch.arange(10)).to(dtype))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="unknown strategy 'rings'; choose one of root, host, sharded"):
        all_reduce([torch.ones(2)], "rings")
    with pytest.raises(ConfigError, match=r"device 1 has \(3,\)"):
        all_reduce([torch.ones(2), torch.ones(3)])
    with pytest.raises(ConfigError, match="no tensors"):
        all_reduce([])
    with pytest.raises(ConfigError, match="not contiguous"):
        all_reduce([torch.ones(2, 2), torch.ones(2, 2).t()])
