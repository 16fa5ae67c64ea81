import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradtide
from gradtide.collective import sum_over_devices
from gradtide.errors import ConfigError
from gradtide.parallel import DevicePool, find_devices
from gradtide.schedule.strategies import STRATEGIES as REGISTERED

pytestmark = pytest.mark.quick

assert REGISTERED
STRATEGIES = sorted(
    name for name in REGISTERED if not name.startswith(("hierarchical", "balanced"))
)  # all that apply within one machine


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(derandomize=True, max_examples=15, deadline=None)
@given(devices=st.integers(1, 5), shape=st.lists(st.integers(0, 7), max_size=3), seed=st.integers(0, 99))
def test_every_device_ends_with_the_exact_sum_of_integers(strategy, devices, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-1000, 1000, shape, generator=generator) for _ in range(devices)]
    expected = torch.stack(tensors).sum(0)
    sum_over_devices(tensors, strategy)
    for tensor in tensors:
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_devices_that_work_side_by_side_give_the_bits_of_those_that_take_turns(strategy):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(10_007, generator=generator) for _ in range(4)]
    turns, threads = [t.clone() for t in inputs], [t.clone() for t in inputs]
    sum_over_devices(turns, strategy)
    with DevicePool(find_devices(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])) as pool:
        sum_over_devices(threads, strategy, each=pool.run)
    for one, other in zip(turns, threads, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, turns[0])


def test_auto_lets_the_planner_choose():
    tensors = [torch.full((5,), float(i)) for i in range(3)]
    assert sum_over_devices(tensors, "auto") > 0
    assert all(torch.equal(t, torch.full((5,), 3.0)) for t in tensors)


@pytest.mark.parametrize(("strategy", "factor"), [("root", 6), ("host", 8), ("sharded", 6)])
def test_the_bytes_between_devices_are_those_of_the_textbook(strategy, factor):
    tensors = [torch.ones(100) for _ in range(4)]
    assert sum_over_devices(tensors, strategy) == factor * 400


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16])
def test_other_dtypes_add_up(dtype):
    tensors = [torch.arange(10).to(dtype) for _ in range(3)]
    sum_over_devices(tensors, "sharded")
    assert torch.equal(tensors[1], (3 * torch.arange(10)).to(dtype))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"no strategy is called 'rnig' \(did you mean ring\?\); there are auto, "):
        sum_over_devices([torch.ones(2)], "rnig")
    with pytest.raises(ConfigError, match=r"does not fit these ranks \(all devices are in one machine"):
        sum_over_devices([torch.ones(2), torch.ones(2)], "hierarchical")
    with pytest.raises(ConfigError, match=r"tensor 1 is torch.float32\[3\], tensor 0"):
        sum_over_devices([torch.ones(2), torch.ones(3)])
    with pytest.raises(ConfigError, match="no tensors"):
        sum_over_devices([])
    with pytest.raises(ConfigError, match="all must be alike and contiguous"):
        sum_over_devices([torch.ones(2, 2), torch.ones(2, 2).t()])


@pytest.mark.filterwarnings("ignore:all_reduce of a list:DeprecationWarning")
@pytest.mark.parametrize("function", [sum_over_devices, gradtide.all_reduce])
@pytest.mark.parametrize("tensor", [torch.ones(3), torch.ones(1), torch.tensor(2.0), torch.ones(2, 2)])
def test_a_bare_tensor_is_refused_and_the_line_names_what_adds_up_over_workers(function, tensor):
    with pytest.raises(ConfigError, match=r"a list with one tensor per device.*Group.from_environment\(\).all_reduce"):
        function(tensor)
    assert tensor.eq(tensor.flatten()[0]).all()
