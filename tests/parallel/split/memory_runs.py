"""What a device of a split model allocates in its steps, as torch.profiler saw it, and what was predicted."""

import functools

import split_runs as runs
import torch
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.parallel.split.profile import profile
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.memory import memory_of
from gradtide.schedule.step.shaping import shape_of
from gradtide.sync import Job
from gradtide.testing.allocations import peak_bytes
from gradtide.train.models import alexnet, lenet, transformer

BATCH = 64


def _mlp():
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10))


CASES = {
    "mlp": (_mlp, (256,)),
    "lenet": (lenet, (1, 28, 28)),
    "alexnet": (lambda: alexnet(width=1 / 8, classes=10, size=67), (3, 67, 67)),
    "transformer": (lambda: transformer(vocabulary=200, length=16, width=64, heads=2, layers=3, dropout=0.1), None),
}


def _batch(name):
    generator = torch.Generator().manual_seed(1)
    shape = CASES[name][1]
    if shape is None:
        return torch.randint(0, 200, (BATCH, 16), generator=generator), torch.randint(
            0, 200, (BATCH, 16), generator=generator
        )
    return torch.randn(BATCH, *shape, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


def _optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def measured(rank, size, group_name, name, kind, micro, order):
    """The most that one device had at once, several steps in: what it holds, and what two more steps allocate."""
    torch.manual_seed(0)
    net, (x, y) = CASES[name][0](), _batch(name)
    units = [unit.name for unit in trace(net, x[:4]).units]
    layout = runs.layout_of(kind, units, micro, order)
    with Group.join(group_name, rank, size, timeout_s=60) as group:
        job = Job.of(group) if size > 1 else Job()
        rule = _optimizer(net.parameters())
        model = gradtide.ModelParallel(net, rule, layout, job=job, devices=None if size > 1 else 1)
        for _ in range(2):
            model.step(x, y, functional.cross_entropy)
        (setting,) = model._engine._settings.values()
        held = [holding.tensor for holding in setting.held.parameters.values()]
        states = setting.optimizer._inner.state.values()
        held += [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        if size > 1:
            _copy_letters(setting.communicator)
        used = peak_bytes(lambda: [model.step(x, y, functional.cross_entropy) for _ in range(2)])
        model.close()
    return sum(tensor.nbytes for tensor in held) + used


def _copy_letters(communicator):
    """The profiler does not see memory that processes share: what lies there is copied, so that it does. One message a
    lane is under way, as plans are proven."""
    receive, send, under_way = communicator.receive, communicator.send, {}

    def sent(values, to, tag):
        if any(isinstance(value, torch.Tensor) for value in values):
            under_way[to] = list(values)
        send(values, to, tag)

    def copied(source, tag):
        values = receive(source, tag)
        return [
            value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in values
        ]

    communicator.receive, communicator.send = copied, sent


@functools.cache
def _costs(name):
    torch.manual_seed(0)
    net, (x, _) = CASES[name][0](), _batch(name)
    return profile(trace(net, x[:4]), x, samples=BATCH, threads=1, optimizer=_optimizer)


def predicted(name, kind, micro, order):
    costs = _costs(name)
    layout = runs.layout_of(kind, [unit.name for unit in costs.units], micro, order)
    return memory_of(build_step(shape_of(layout, costs)))
