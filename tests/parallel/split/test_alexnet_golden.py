"""AlexNet's figures: as it was trained on two GPUs in 2012, and what that saves."""

import pytest
import torch

from gradtide.parallel.split.cut.placing import place_stage
from gradtide.parallel.split.cut.ways import chosen_ways, ways_of
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.costs import ModelCosts, UnitCost, Value
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.proof import verify_step
from gradtide.schedule.step.shape import Seconds
from gradtide.schedule.step.shaping import shape_of
from gradtide.train.models import alexnet

TOWERS = {"conv1": "channels", "conv2": "groups", "conv3": "channels", "conv4": "groups", "conv5": "groups"}
DENSE = {"fc6": "columns", "fc7": "columns", "fc8": "columns"}
FLOAT = 4


@pytest.fixture(scope="module")
def chain():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return trace(alexnet(), torch.zeros(2, 3, 227, 227))


@pytest.fixture(scope="module")
def costs(chain):
    """AlexNet's units with their sizes; time is not looked at."""
    with torch.no_grad():
        example = torch.zeros(2, 3, 227, 227)
        read, values, units = example, [Value(chain.inputs[0], example[0].nbytes, has_gradient=False)], []
        for unit in chain.units:
            size = sum(parameter.nbytes for parameter in unit.module.parameters())
            ways = ways_of(unit, chain, tuple(read.shape[1:]))
            read = unit.module(read)
            values.append(Value(unit.writes[0], read[0].nbytes))
            one = UnitCost(unit.name, unit.reads, unit.writes, Seconds(0.0, 1e-4), Seconds(0.0, 2e-4), ways=ways)
            units.append(_with_parameters(one, size))
    return ModelCosts(tuple(units), tuple(values), chain.inputs, chain.outputs, 128)


def _with_parameters(unit, size):
    return UnitCost(
        unit.name,
        unit.reads,
        unit.writes,
        unit.forward,
        unit.backward,
        parameter_bytes=size,
        trained_bytes=size,
        ways=unit.ways,
    )


@pytest.fixture(scope="module")
def cut(costs):
    return Stage(0, len(costs.units), (0, 1), 2, ways=tuple((TOWERS | DENSE).items()))


@pytest.fixture(scope="module")
def stage(costs, cut):
    shape = shape_of(Layout(tuple(unit.name for unit in costs.units), (cut,)), costs)
    verify_step(build_step(shape))
    return shape.stages[0]


def test_alexnet_has_60_965_224_parameters(costs):
    total = sum(unit.parameter_bytes for unit in costs.units)
    assert total == 60_965_224 * FLOAT
    assert round(total / 1e6, 1) == 243.9


def test_a_gpu_of_two_sends_30_336_floats_a_sample_and_pass(stage):
    sent = [exchange for segment in stage.segments for exchange in segment.before]
    assert [(one.kind, one.forward_bytes / FLOAT) for one in sent] == [
        ("gather", 21_632),  # before conv3
        ("gather", 4_608),  # before fc6
        ("gather", 2_048),  # before fc7
        ("gather", 2_048),  # before fc8
    ]
    assert sum(one.forward_bytes for one in sent) / FLOAT == 30_336
    assert sum(one.backward_bytes for one in sent) / FLOAT == 30_336
    assert [one.kind for one in stage.after] == ["collect"]  # the logits, which the paper's figure leaves out


def test_at_a_batch_of_128_that_is_31_mb_against_244_mb_of_gradients_and_1_005_samples_break_even(costs, stage):
    sent = [exchange for segment in stage.segments for exchange in segment.before]
    a_sample = sum(one.forward_bytes + one.backward_bytes for one in sent)
    gradients = sum(unit.trained_bytes for unit in costs.units)  # 2 (c - 1)/c of them: all of them, with two copies
    assert round(128 * a_sample / 1e6, 1) == 31.1
    assert round(gradients / a_sample) == 1005


def test_the_planner_foresees_the_exchanges_that_the_cut_makes(chain, cut, stage):
    segments, after = place_stage(chain, cut, chosen_ways(chain, cut))
    made = [[(one.kind, one.value.removesuffix("/sliced")) for one in segment.before] for segment in segments]
    assert made == [[(one.kind, one.value) for one in segment.before] for segment in stage.segments]
    assert [(one.kind, one.value.removesuffix("/sliced")) for one in after] == [
        (one.kind, one.value) for one in stage.after
    ]
