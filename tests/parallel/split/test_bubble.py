"""How long devices of a pipeline idle, told by the events of a run."""

import time
from statistics import median

import pytest
import torch
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.events import TaskDone
from gradtide.parallel.split.trace.leaves import keep_whole
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.sync import Job

STEPS = 3
TASK_S = 0.02  # so long that what Python does beside it, on a busy machine too, is little


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(TASK_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(TASK_S)
        return gradient


class Resting(nn.Module):
    """Takes a fixed time for its forward and its backward, and no core."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return _Rest.apply(x + self.shift)


keep_whole(Resting)


def idle_share(order, micro_batches):
    """Of the time from the first task of computing to the end of the last, over both devices, in the median step."""
    told = []
    net = nn.Sequential(Resting(), Resting())
    layout = Layout(("0", "1"), (Stage(0, 1, (0,)), Stage(1, 2, (1,))), micro_batches, order)
    rule = torch.optim.SGD(net.parameters(), lr=0.1)
    model = gradtide.ModelParallel(net, rule, layout, devices=2, job=Job(), emit=told.append)
    x, y = torch.randn(16, 4), torch.randint(0, 4, (16,))
    model.step(x, y, functional.cross_entropy)
    found = []
    for _ in range(STEPS):
        told.clear()
        model.step(x, y, functional.cross_entropy)
        found.append(idle_in(told, micro_batches))
    model.close()
    return median(found)


def idle_in(told, micro_batches):
    computed = [one for one in told if isinstance(one, TaskDone) and one.kind in ("forward", "backward")]
    assert len(computed) == 4 * micro_batches
    span = max(one.end_s for one in computed) - min(one.begin_s for one in computed)
    return 1 - sum(one.end_s - one.begin_s - one.waited_s for one in computed) / (2 * span)


def check(order, micro_batches):
    assert idle_share(order, micro_batches) == pytest.approx(1 / (micro_batches + 1), abs=0.03)


@pytest.mark.timing
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_two_equal_stages_idle_as_long_as_the_textbook_says(order, micro_batches):
    check(order, micro_batches)


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_they_do_for_every_number_of_micro_batches(order):
    for micro_batches in range(1, 17):
        check(order, micro_batches)
