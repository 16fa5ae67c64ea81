"""Several devices give what one device gives."""

import copy
from functools import cache, partial
from itertools import cycle

import pytest
import torch
from torch import nn
from torch.nn import functional

from gradtide.parallel import DevicePool, find_devices, replicate, share_batch_norm, split_batch, train_batch
from gradtide.train.digits import load_digits
from gradtide.train.models import build_model

STEPS = 20
(IMAGES, LABELS), _ = load_digits()


def batches(dtype, sizes=(64, 61, 50, 3)):
    """Real digits in batches of changing, mostly uneven sizes; one has fewer samples than some runs have devices."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for _, start, size in zip(range(STEPS), cycle(starts), cycle(sizes), strict=False):
        yield IMAGES[start : start + size].to(dtype), LABELS[start : start + size]


def train_plainly(model, dtype, lr, optimizer=torch.optim.SGD):
    model = copy.deepcopy(model).to(dtype)
    stepper = optimizer(model.parameters(), lr=lr)
    losses = []
    for x, y in batches(dtype):
        loss = functional.cross_entropy(model(x), y)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return model, losses


def train_on(model, dtype, lr, devices, strategy, shared_norm=False, optimizer=torch.optim.SGD):
    found = find_devices(devices)
    with DevicePool(found) as pool:
        replicas = replicate(model.to(dtype), found)
        if shared_norm:
            share_batch_norm(replicas, pool)
        optimizers = [optimizer(r.module.parameters(), lr=lr) for r in replicas]
        for batch in batches(dtype):
            train_batch(replicas, optimizers, split_batch(batch, found), functional.cross_entropy, pool, strategy)
    return [replica.module for replica in replicas]


def furthest(left, right):
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)


MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


@cache
def plain_lenet(dtype):
    return train_plainly(build_model("lenet", seed=1), dtype, 0.05, MOMENTUM)


@pytest.mark.parametrize("strategy", ["root", "host", "sharded"])
@pytest.mark.parametrize(
    ("dtype", "tolerance", "devices"),
    [
        *((torch.float64, 1e-10, devices) for devices in (1, 2, 3, 4)),
        (torch.float32, 1e-5, 4),
        *(pytest.param(torch.float32, 1e-5, devices, marks=pytest.mark.slow) for devices in (1, 2, 3)),
    ],
)
def test_k_devices_reach_the_parameters_of_one(strategy, devices, dtype, tolerance):
    plain, losses = plain_lenet(dtype)
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    modules = train_on(build_model("lenet", seed=1), dtype, 0.05, devices, strategy, optimizer=MOMENTUM)
    assert furthest(modules[0], plain) < tolerance
    for module in modules[1:]:
        assert furthest(module, modules[0]) == 0


@pytest.mark.parametrize("strategy", ["ring", "double-tree", "halving-doubling", "packed-trees", "auto"])
def test_other_strategies_of_the_planner_reach_the_parameters_of_one(strategy):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Tanh(), nn.Linear(16, 10))
    plain, _ = train_plainly(model, torch.float64, 0.05)
    assert furthest(train_on(model, torch.float64, 0.05, 4, strategy)[0], plain) < 1e-10


def test_k_devices_reach_the_parameters_of_one_with_adam():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))
    plain, _ = train_plainly(model, torch.float64, 0.01, torch.optim.Adam)
    modules = train_on(model, torch.float64, 0.01, 3, "sharded", optimizer=torch.optim.Adam)
    assert furthest(modules[0], plain) < 1e-10


def with_batch_norm(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4, **options),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(144, 16),
        nn.BatchNorm1d(16, **options),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}])
@pytest.mark.parametrize("devices", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_shared_batch_norm_on_k_devices_equals_one_running_statistics_included(devices, options):
    model = with_batch_norm(**options)
    plain, losses = train_plainly(model, torch.float64, lr=0.05)
    assert losses[-2] < losses[0]
    modules = train_on(model, torch.float64, 0.05, devices, "sharded", shared_norm=True)
    assert furthest(modules[0], plain) < 1e-10
    assert modules[0].state_dict().keys() == plain.state_dict().keys()
    plain.eval(), modules[0].eval()
    if options.get("track_running_stats", True):
        assert (plain(IMAGES[:9].double()) - modules[0](IMAGES[:9].double())).abs().max() < 1e-9


def test_batch_norm_is_per_device_by_default():
    model = with_batch_norm()
    with DevicePool(found := find_devices(2)) as pool:
        replicas = replicate(model, found)
        optimizers = [torch.optim.SGD(r.module.parameters(), lr=0.05) for r in replicas]
        shards = split_batch((IMAGES[:20], LABELS[:20]), found)
        train_batch(replicas, optimizers, shards, functional.cross_entropy, pool)
    model(IMAGES[:10])
    assert torch.equal(replicas[0].module[1].running_mean, model[1].running_mean)
    assert not torch.equal(replicas[1].module[1].running_mean, model[1].running_mean)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(784, 10), nn.Linear(784, 10)
        self.sometimes = nn.Linear(784, 10)
        self.frozen = nn.Linear(10, 10)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = x.flatten(1)
        out = self.frozen(self.used(x))
        return out + self.sometimes(x) if x[0, 0] > 0.5 else out


def test_unused_and_frozen_parameters_stay_as_plain_pytorch_leaves_them():
    model = TwoHeads()

    def decayed(parameters, lr):
        return torch.optim.SGD(parameters, lr=lr, weight_decay=0.1, momentum=0.9)

    modules = train_on(model, torch.float64, 0.05, 3, "root", optimizer=decayed)
    plain, _ = train_plainly(model, torch.float64, 0.05, decayed)
    assert torch.equal(modules[0].unused.weight, plain.unused.weight)
    assert torch.equal(modules[0].frozen.weight, plain.frozen.weight)
    assert (modules[0].used.weight - plain.used.weight).abs().max() < 1e-10
