"""A stage on one device: all of its units, as they are, with tensors of its own."""

import pytest
import torch
from shard_reference import sequential_chain
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.stage import cut_stage
from gradtide.parallel.split.meta import initial_tensors
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.layout import Stage
from gradtide.train.models import transformer


def run_whole(stage, values):
    for segment in stage.segments:
        for unit in segment.units:
            (name,) = unit.writes
            values[name] = unit.module(*[values[read] for read in unit.reads])
    return values


def test_a_stage_on_one_device_is_one_segment_that_computes_the_same():
    chain = sequential_chain(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Linear(4, 2))
    stage = cut_stage(chain, Stage(1, 4, (0,)), 0)
    assert len(stage.segments) == 1
    assert stage.segments[0].reads == ("v0",)
    assert stage.segments[0].writes == ("v3",)
    assert stage.after == ()
    x = torch.randn(5, 4, requires_grad=True)
    expected = x
    for unit in chain.units[1:]:
        expected = unit.module(expected if unit.name != "u1" else expected.clone())
    assert torch.equal(run_whole(stage, {"v0": x})["v3"], expected)
    assert [(p.name, p.shape, p.index, p.first_shard) for p in stage.parameters][:1] == [("2.weight", (4,), (), True)]
    assert [b.name for b in stage.buffers] == ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert torch.equal(stage.buffers[0].tensor, chain.units[2].module.running_mean)  # the copy counts too


def test_local_tensors_are_nobody_elses_and_frozen_ones_stay_frozen():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    first.bias.requires_grad_(False)
    stage = cut_stage(sequential_chain(first, second), Stage(0, 2, (0,)), 0)
    assert [p.tensor.requires_grad for p in stage.parameters] == [True, False, True, True]
    with torch.no_grad():
        for parameter in stage.parameters:
            parameter.tensor.add_(1)
    assert torch.equal(first.weight + 1, stage.parameters[0].tensor)


def test_tied_parameters_and_a_layer_that_is_called_twice_are_one_tensor_in_a_stage():
    tied, twice = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
    other = nn.Linear(3, 3, bias=False)
    other.weight = tied.weight
    stage = cut_stage(sequential_chain(tied, twice, other, twice), Stage(0, 4, (0,)), 0)
    assert [p.name for p in stage.parameters] == ["0.weight", "1.weight", "1.bias"]
    modules = [unit.module for unit in stage.segments[0].units]
    assert modules[0].weight is modules[2].weight is stage.parameters[0].tensor
    assert modules[1].bias is modules[3].bias


@pytest.mark.parametrize("shards", [1, 2])
def test_a_model_on_the_meta_device_gets_the_values_of_the_whole_ones_unit_by_unit(shards):
    with torch.device("meta"):
        model = transformer(vocabulary=11, length=7, width=6, heads=2, layers=1)
    chain = trace(model, torch.randint(11, (4, 7)))
    expected = dict(initial_tensors(model, 5))
    asked = []

    def source(wanted):
        asked.append(set(wanted))
        return initial_tensors(model, 5, wanted)

    ways = (("token", "rows"), ("head", "columns"), ("blocks.0.up", "columns"), ("blocks.0.down", "rows"))
    stage = Stage(0, len(chain.units), tuple(range(shards)), shards, ways=ways if shards > 1 else ())
    for shard in range(shards):
        local = cut_stage(chain, stage, shard, source=source)
        for part in local.parameters:
            assert torch.equal(part.tensor, expected[part.name][part.index])
            assert part.tensor.requires_grad
        assert {"token.weight"} in asked
        assert max(map(len, asked)) == 2
    with pytest.raises(ConfigError, match="token is on the meta device"):
        cut_stage(chain, stage, 0)
