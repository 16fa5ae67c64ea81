import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from gradtide.errors import ConfigError, DeviceError
from gradtide.parallel import DevicePool, find_devices, replicate, split_batch, train_batch
from gradtide.parallel.devices.randomness import DeviceRandom

pytestmark = pytest.mark.quick


def test_replicas_on_cpu_share_no_memory_with_the_model_or_each_other():
    model = nn.Linear(3, 2)
    replicas = replicate(model, find_devices(2))
    addresses = {p.data_ptr() for m in (model, *(r.module for r in replicas)) for p in m.parameters()}
    assert len(addresses) == 6
    assert torch.equal(replicas[1].module.weight, model.weight)


def test_a_model_with_tied_parameters_keeps_them_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    (replica,) = replicate(model, find_devices(1))
    assert replica.module[1].weight is replica.module[0].weight
    assert len(replica.gradients.parameters) == 3


@settings(derandomize=True, deadline=None)
@given(samples=st.integers(1, 40), devices=st.integers(1, 8))
def test_shards_are_the_batch_cut_evenly_and_their_weights_add_up(samples, devices):
    x, y = torch.arange(samples * 2.0).view(samples, 2), torch.arange(samples)
    shards = split_batch((x, y), find_devices([f"cpu:{i}" for i in range(devices)]))
    assert torch.equal(torch.cat([s.inputs for s in shards]), x)
    assert torch.equal(torch.cat([s.targets for s in shards]), y)
    sizes = [len(s.inputs) for s in shards]
    assert max(sizes) - min(sizes) <= 1
    assert len(shards) == min(samples, devices)
    assert sum(s.weight for s in shards) == pytest.approx(1)
    assert [s.weight for s in shards] == [size / samples for size in sizes]


def test_a_batch_without_samples_or_with_other_counts_is_refused():
    for x, y in ((torch.ones(0, 2), torch.ones(0)), (torch.ones(3, 2), torch.ones(2))):
        with pytest.raises(ConfigError, match="as many of each"):
            split_batch((x, y), find_devices(1))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (0, "0 devices; ask for 1 or more"),
        ("-1", "-1 devices"),
        ("tpu:0", "unknown device 'tpu:0'; use a number"),
        ("cuda:99", "no device 'cuda:99': this machine has"),
        ("cpu:0,cpu:0", "named twice"),
        ("", "unknown device ''"),
    ],
)
def test_devices_that_make_no_sense_are_named(wanted, message):
    with pytest.raises(DeviceError, match=message):
        find_devices(wanted)


def test_devices_run_side_by_side():
    meet = threading.Barrier(3, timeout=30)
    with DevicePool(find_devices("cpu:0,cpu:1,cpu:2")) as pool:
        assert sorted(pool.run(lambda index: meet.wait() * 0 + index)) == [0, 1, 2]


def test_a_failure_on_one_device_is_raised_and_lets_nobody_wait():
    def work(index):
        if index == 1:
            raise ZeroDivisionError("device 1 fails")
        return pool.meeting.exchange(index, None)

    with DevicePool(find_devices(3)) as pool:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="device 1 fails"):
                pool.run(work)
        assert pool.run(lambda index: index) == [0, 1, 2]


def test_a_closed_pool_leaves_no_threads():
    before = threading.active_count()
    with DevicePool(find_devices(4)) as pool:
        assert threading.active_count() == before + 4
        pool.run(lambda index: index)
    assert threading.active_count() == before


def dropout_run(seeds):
    torch.manual_seed(0)
    found = find_devices(2)
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    x, y = torch.randn(32, 6), torch.randint(0, 2, (32,))
    with DevicePool(found) as pool:
        replicas = replicate(model, found)
        optimizers = [torch.optim.SGD(r.module.parameters(), lr=0.1) for r in replicas]
        randomness = [DeviceRandom(torch.Generator().manual_seed(seed)) for seed in seeds]
        for _ in range(10):
            shards = split_batch((x, y), found)
            train_batch(replicas, optimizers, shards, functional.cross_entropy, pool, randomness=randomness)
    assert all(r.draws == 10 for r in randomness)
    return replicas[0].module[0].weight.detach()


def test_dropout_draws_from_a_generator_per_device_so_runs_repeat_bit_for_bit():
    first = dropout_run((1, 2))
    for _ in range(5):
        assert torch.equal(dropout_run((1, 2)), first)
    assert not torch.equal(dropout_run((1, 3)), first)


def test_a_draw_that_can_take_no_generator_is_refused_by_name():
    with DeviceRandom(torch.Generator()), pytest.raises(ConfigError, match=r"native_dropout.*use one device"):
        torch.ops.aten.native_dropout(torch.ones(3), 0.5, True)
    generator = torch.Generator().manual_seed(5)
    with DeviceRandom(torch.Generator().manual_seed(5)):
        drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=generator))
