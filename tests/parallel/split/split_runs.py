"""What the devices of the tests of split models do: a few steps under some layout, on threads or processes."""

import uuid

import torch
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.sync import Job
from gradtide.train.models import alexnet, lenet, transformer

BATCH = 33


def small_mlp():
    return nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 15), nn.Tanh(), nn.Linear(15, 14), nn.ReLU(), nn.Linear(14, 10)
    )


def small_alexnet():
    return alexnet(width=1 / 8, classes=10, size=67)


def small_transformer():
    return transformer(vocabulary=20, length=6, width=16, heads=2, layers=2, dropout=0.2)


def without_dropout():
    """Plain PyTorch is its reference: nothing is drawn."""
    model = small_alexnet()
    for layer in model:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


MODELS = {"mlp": small_mlp, "lenet": lenet, "alexnet": small_alexnet, "transformer": small_transformer}
LARGER = {"alexnet in full": alexnet, "alexnet without dropout": without_dropout}
DRAWS = ("alexnet", "alexnet in full", "transformer")  # their reference is gradtide on one device
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.003, amsgrad=True),
}
SHAPES = {"mlp": (12,), "lenet": (1, 28, 28), "alexnet": (3, 67, 67)}
SHAPES |= {"alexnet without dropout": (3, 67, 67), "alexnet in full": (3, 227, 227)}


def build(name, dtype=torch.float64):
    torch.manual_seed(0)
    return (MODELS | LARGER)[name]().to(dtype)


def batches(name, steps, dtype=torch.float64, sizes=(BATCH,)):
    """The last one is smaller; some labels are ignored."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        samples = sizes[step % len(sizes)]
        if name == "transformer":
            x = torch.randint(0, 20, (samples, 6), generator=generator)
            y = torch.randint(0, 20, (samples, 6), generator=generator)
            y[torch.rand(y.shape, generator=generator) < 0.3] = -100
        else:
            x = torch.randn(samples, *SHAPES[name], generator=generator, dtype=torch.float64).to(dtype)
            y = torch.randint(0, 10, (samples,), generator=generator)
        yield x, y


def layout_of(kind, units, micro_batches=4, order="1f1b"):
    """A layout of a model with these units: where stages meet goes by their number."""
    count = len(units)
    half, third = count // 2, count // 3

    def stage(first, last, devices, shards=1, recompute=False):
        return Stage(first, last, tuple(devices), shards, recompute)

    stages = {
        "one": [stage(0, count, [0])],
        "copies 2": [stage(0, count, [0, 1])],
        "pipeline 2": [stage(0, half, [0]), stage(half, count, [1])],
        "pipeline 3": [stage(0, third, [0]), stage(third, 2 * third, [1]), stage(2 * third, count, [2])],
        "again": [stage(0, half, [0], recompute=True), stage(half, count, [1], recompute=True)],
        "there and back": [stage(0, third, [0]), stage(third, 2 * third, [1]), stage(2 * third, count, [0])],
        "tensor 2": [stage(0, count, [0, 1], 2)],
        "data 2 pipeline 2": [stage(0, half, [0, 1]), stage(half, count, [2, 3])],
        "data 2 tensor 2": [stage(0, count, [0, 1, 2, 3], 2)],
        "copies, then shards": [stage(0, half, [0, 1]), stage(half, count, [0, 1], 2)],
        "copies, then shards on others": [stage(0, half, [0, 1]), stage(half, count, [3, 2], 2)],
    }[kind]
    return Layout(tuple(units), tuple(stages), micro_batches, order)


LAYOUTS = {
    "pipeline 2": 2, "pipeline 3": 3, "again": 2, "there and back": 2, "tensor 2": 2, "copies 2": 2,
    "data 2 pipeline 2": 4, "data 2 tensor 2": 4, "copies, then shards": 2, "copies, then shards on others": 4,
}  # fmt: skip


def alone(name, optimizer, steps, clip_norm=None, dtype=torch.float64, sizes=(BATCH,)):
    """Plain PyTorch in one process; where numbers are drawn, gradtide on one device."""
    if name in DRAWS:
        return on_devices(1, name, optimizer, "one", steps, clip_norm, dtype, sizes, 1)
    net = build(name, dtype)
    rule = OPTIMIZERS[optimizer](net.parameters())
    losses = []
    for x, y in batches(name, steps, dtype, sizes):
        loss = functional.cross_entropy(net(x), y)
        rule.zero_grad()
        loss.backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        rule.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        return losses, net.state_dict(), rule.state_dict()["state"], net(x)


def _train(model, name, steps, dtype, sizes):
    data = list(batches(name, steps, dtype, sizes))
    losses = [float(model.step(x, y, functional.cross_entropy)) for x, y in data]
    returned = model.eval()(data[-1][0])
    found = losses, model.state_dict(), model.optimizer_state_dict()["state"], returned
    model.close()
    return found


def units_of(name, dtype=torch.float64):
    x, _ = next(batches(name, 1, dtype))
    return [unit.name for unit in trace(build(name, dtype), x[:4]).units]


def on_devices(devices, name, optimizer, kind, steps, clip_norm, dtype=torch.float64, sizes=(BATCH,), micro=4):
    """On the devices of this process."""
    net = build(name, dtype)
    rule = OPTIMIZERS[optimizer](net.parameters())
    layout = layout_of(kind, units_of(name, dtype), micro)
    model = gradtide.ModelParallel(net, rule, layout, devices=devices, clip_norm=clip_norm, seed=7, job=Job())
    return _train(model, name, steps, dtype, sizes)


def as_rank(rank, size, group_name, name, optimizer, kind, steps, clip_norm, dtype, sizes, micro):
    """As one of `size` processes. Only rank 0's parameters count."""
    net = build(name, dtype)
    if rank:
        for parameter in net.parameters():
            nn.init.constant_(parameter, 0.5)
    rule = OPTIMIZERS[optimizer](net.parameters())
    layout = layout_of(kind, units_of(name, dtype), micro)
    with Group.join(group_name, rank, size, timeout_s=900 if name in LARGER else 60) as group:
        model = gradtide.ModelParallel(net, rule, layout, clip_norm=clip_norm, seed=7, job=Job.of(group))
        return _train(model, name, steps, dtype, sizes)


def farthest_rank(rank, size, group_name, path, *options):
    """How far one of the processes is from the results in a file: a large model's don't go through a pipe."""
    found = as_rank(rank, size, group_name, *options)
    return largest_difference(found, torch.load(path, mmap=True, weights_only=True))


def new_name():
    return f"split-{uuid.uuid4().hex}"


def largest_difference(found, expected):
    """Over losses, parameters, the optimizer's state, and what the model returns."""
    worst = max(abs(a - b) for a, b in zip(found[0], expected[0], strict=True))
    assert list(found[1]) == list(expected[1])
    for name, value in expected[1].items():
        worst = max(worst, float((found[1][name] - value).abs().max()))
    assert found[2].keys() == expected[2].keys()
    for number, state in expected[2].items():
        assert found[2][number].keys() == state.keys()
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert found[2][number][key].shape == value.shape
                worst = max(worst, float((found[2][number][key] - value).abs().max()))
            else:
                assert found[2][number][key] == value
    return max(worst, float((found[3] - expected[3]).abs().max()))
