"""The steps that split models run are proven ones, in whatever order."""

from dataclasses import replace

import pytest
import split_runs as runs
import torch
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.parallel.split.planning import shared_statistics
from gradtide.parallel.split.run.shaping import ChainShape
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.proof import verify_step
from gradtide.sync import Job


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_the_steps_of_all_layouts_are_proven(name):
    x, _ = next(runs.batches(name, 1))
    chain = trace(runs.build(name), x[:4])
    for kind in runs.LAYOUTS:
        shape = ChainShape.of(chain, runs.layout_of(kind, [unit.name for unit in chain.units], 4))
        for samples in (33, 5, 1):
            verify_step(build_step(shape.step(samples, clip=True)))


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "interleaved"])
def test_every_order_gives_the_same(order):
    units = runs.units_of("mlp")
    stages = (Stage(0, 2, (0,)), Stage(2, 4, (1,)), Stage(4, 6, (0,)), Stage(6, 7, (1,)))
    net, plain = runs.build("mlp"), runs.build("mlp")
    rule = torch.optim.SGD(plain.parameters(), lr=0.1)
    layout = Layout(tuple(units), stages, 4, order)
    model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), layout, devices=2, job=Job())
    for x, y in runs.batches("mlp", 3):
        expected = functional.cross_entropy(plain(x), y)
        rule.zero_grad()
        expected.backward()
        rule.step()
        assert float(model.step(x, y, "cross_entropy")) == pytest.approx(expected.item(), abs=1e-12)
    model.close()


def test_an_order_that_is_only_planned_is_refused():
    net = runs.build("mlp")
    layout = runs.layout_of("pipeline 2", runs.units_of("mlp"), 4, "zero-bubble")
    model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), layout, devices=2, job=Job())
    x, y = next(runs.batches("mlp", 1))
    with pytest.raises(gradtide.errors.ConfigError, match="zero-bubble is planned and simulated, but not run"):
        model.step(x, y, "cross_entropy")


def test_what_copies_add_up_for_shared_batch_norms_is_said_to_be_left_out_of_a_plan():
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    x = torch.randn(8, 12)
    plan = gradtide.split(net, x, devices=2, batch_norm="shared")
    chain = trace(net, x)
    for row in plan.table:
        told = shared_statistics(replace(plan, table=(row,)), chain)
        copied = any(stage.copies > 1 and stage.first <= 1 < stage.last for stage in row.layout.stages)
        assert told == (copied * "Not in these times: copies add up the statistics of 1 batch norm, 392 B in 3 sums")
    assert plan.explain().endswith(plan.left_out)
