"""What goes wrong between the processes of a split model."""

import os

import split_runs as runs
import torch

import gradtide
from gradtide.collective import Group
from gradtide.errors import GradtideError
from gradtide.parallel.split.trace import keep_whole
from gradtide.sync import Job


def _model(group):
    net = runs.build("mlp")
    layout = runs.layout_of("pipeline 2", runs.units_of("mlp"), 4)
    return gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), layout, job=Job.of(group))


def _told(work):
    try:
        work()
    except GradtideError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was said"


def other_batches(rank, size, name):
    with Group.join(name, rank, size, timeout_s=30) as group:
        model = _model(group)
        (x, y), (other, _) = runs.batches("mlp", 2)
        model.step(x, y, "cross_entropy")
        (setting,) = model._engine._settings.values()
        held = [holding.tensor for holding in setting.held.parameters.values()]
        before = [tensor.detach().clone() for tensor in held]
        told = _told(lambda: model.step(other if rank else x, y, "cross_entropy"))
        assert all(map(torch.equal, held, before))
        assert all(tensor.grad is None for tensor in held)
        return told


def other_calls(rank, size, name):
    """Rank 1 steps while rank 0 evaluates."""
    with Group.join(name, rank, size, timeout_s=30) as group:
        model = _model(group)
        x, y = next(iter(runs.batches("mlp", 1)))
        model.step(x, y, "cross_entropy")
        if rank:
            return _told(lambda: model.step(x, y, "cross_entropy"))
        model.eval()
        return _told(lambda: model(x))


def losing(rank, size, name):
    """Rank 1 is killed between two steps."""
    with Group.join(name, rank, size, timeout_s=30) as group:
        model = _model(group)
        x, y = next(iter(runs.batches("mlp", 1)))
        model.step(x, y, "cross_entropy")
        if rank:
            os.kill(os.getpid(), 9)
        told = _told(lambda: [model.step(x, y, "cross_entropy") for _ in range(3)])
        return told, _told(lambda: model.step(x, y, "cross_entropy"))


def failing(rank, size, name):
    """The second stage is given a label that is no class."""
    with Group.join(name, rank, size, timeout_s=30) as group:
        model = _model(group)
        x, y = next(iter(runs.batches("mlp", 1)))
        y = y + 100

        def step():
            try:
                model.step(x, y, "cross_entropy")
            except IndexError as error:
                return f"IndexError: {error}"

        return step() if rank else _told(step)


def automatic(rank, size, name):
    """Rank 0 plans, and all do as it says."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = runs.build("mlp")
        model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), job=Job.of(group))
        losses = [float(model.step(x, y, "cross_entropy")) for x, y in runs.batches("mlp", 2)]
        layout, text = model.layout, model.explain()
        model.close()
        return losses, layout, text


def impossible(rank, size, name):
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = runs.build("mlp")
        model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "0..9 | 5..", job=Job.of(group))
        x, y = next(iter(runs.batches("mlp", 1)))
        return _told(lambda: model.step(x, y, "cross_entropy"))


def wanting_others(rank, size, name, what):
    """After a step that is all right, rank 1 wants something else than rank 0."""
    with Group.join(name, rank, size, timeout_s=30) as group:
        net = runs.build("mlp")
        layout = runs.layout_of("copies 2", runs.units_of("mlp"))
        model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), layout, job=Job.of(group))
        x, y = next(iter(runs.batches("mlp", 1)))
        model.step(x, y, "cross_entropy")
        if rank and what == "rate":
            model.optimizer.param_groups[0]["lr"] = 0.2
        if rank and what == "steps":
            model.steps = 7
        if what == "state":
            model.load_state_dict({key: value + rank for key, value in model.state_dict().items()})
        if rank and what == "samples":
            x, y = x[:5], y[:5]
        if not rank and what == "call":
            return _told(model.state_dict)
        return _told(lambda: model.step(x, y, "cross_entropy"))


class Capped(torch.nn.Linear):
    """Adds to the first 12 samples of a batch alone."""

    def forward(self, x):
        return x.index_add(0, torch.arange(len(x))[:12], super().forward(x[:12]))


def over_capacity(rank, size, name):
    with Group.join(name, rank, size, timeout_s=60) as group:
        torch.manual_seed(0)
        net = torch.nn.Sequential(Capped(8, 8), torch.nn.Linear(8, 3))
        keep_whole(Capped)
        model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "x2", job=Job.of(group))
        return _told(lambda: model.step(torch.rand(64, 8), torch.arange(64) % 3, "cross_entropy"))
