"""What a chain costs: bytes counted by hand, seconds that add up, budgets that are kept."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.ways import default_ways
from gradtide.parallel.split.profile import profile
from gradtide.parallel.split.profile.overheads import overheads_beside, wire_of, with_overheads, work_of_threads
from gradtide.parallel.split.profile.updating import update_costs
from gradtide.parallel.split.run.shaping import ChainShape
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.costs import ModelCosts
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.shaping import shape_of
from gradtide.testing.allocations import peak_bytes
from gradtide.train.models import alexnet, lenet, transformer


def costs_of(model: nn.Module, example: torch.Tensor, samples: int = 8, **options) -> ModelCosts:
    return profile(trace(model, example), example, samples=samples, threads=1, **options)


def test_bytes_of_values_parameters_and_what_is_kept_are_those_counted_by_hand():
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 30), nn.Sigmoid())
    costs = costs_of(model, torch.rand(4, 10))
    assert [unit.parameter_bytes for unit in costs.units] == [220 * 4, 0, 630 * 4, 0]
    assert {value.name: value.bytes for value in costs.values} == {"input": 40, "0": 80, "1": 80, "2": 120, "3": 120}
    assert [value.has_gradient for value in costs.values] == [False, True, True, True, True]
    assert all(value.batched for value in costs.values)
    # Nothing of the batch, which is there anyway; what ReLU gives, once, though the next layer keeps it too; what
    # Sigmoid gives.
    assert [unit.saved_bytes for unit in costs.units] == [0, 80, 0, 120]
    assert (costs.inputs, costs.outputs, costs.samples) == (("input",), ("3",), 8)
    assert "columns" in {way.name for way in costs.units[0].ways}


def test_seconds_of_the_units_grow_with_the_samples_and_add_up_to_the_models():
    model = lenet()
    costs = costs_of(model, torch.rand(8, 1, 28, 28), samples=32)
    assert all(unit.forward.of(16) > 0 for unit in costs.units)
    assert all(unit.forward.per_sample_s >= 0 and unit.forward.fixed_s >= 0 for unit in costs.units)
    conv1, conv2 = costs.units[0], costs.units[3]
    assert conv2.forward.of(16) + conv2.backward.of(16) > sum(u.forward.of(16) for u in costs.units[8:])
    assert conv1.for_weights == 1.0  # nobody asks for the gradient of images
    assert 0.0 < conv2.for_weights < 1.0
    assert costs.units[1].for_weights == 0.0


def test_a_tie_skips_and_integers_are_told_as_they_are():
    costs = costs_of(transformer(layers=1), torch.randint(0, 96, (3, 8)), samples=4)
    assert costs.ties == (("token.weight", 96 * 64 * 4),)
    names = [unit.name for unit in costs.units]
    assert costs.tied_units == ((names.index("token"), names.index("head")),)
    values = {value.name: value for value in costs.values}
    assert (values["tokens"].has_gradient, values["tokens"].bytes) == (False, 64)
    assert not values["expand_as"].has_gradient
    assert values["token"].has_gradient


def test_a_frozen_beginning_has_no_gradient_and_no_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    costs = costs_of(model, torch.rand(4, 8))
    assert [value.has_gradient for value in costs.values] == [False, False, False, True]
    assert (costs.units[0].trained_bytes, costs.units[0].parameter_bytes) == (0, 72 * 4)
    assert [unit.backward.of(4) for unit in costs.units[:2]] == [0.0, 0.0]
    assert costs.units[2].backward.of(4) > 0


def test_the_model_is_as_it_was_after_it_was_profiled():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    model[0].weight.grad = torch.ones(4, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    example, random = torch.rand(5, 4), torch.get_rng_state()
    costs_of(model, example)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert not any(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ("sgd", 0.0),
        ("momentum", 1.0),
        ("adamw", 2.0),
        ("RMSprop", 1.0),
        (torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9), 1.0),
        (lambda parameters: torch.optim.Adam(parameters, amsgrad=True), 3.0),
    ],
)
def test_an_optimizers_state_is_what_a_step_of_it_leaves(optimizer, state):
    costs = update_costs(optimizer, 1 << 16)
    assert costs.state_per_byte == state
    assert costs.per_parameter_s > 0


def test_an_unknown_optimizer_an_empty_batch_and_too_little_memory_are_refused():
    model, example = nn.Sequential(nn.Linear(1000, 1000)), torch.rand(4, 1000)
    with pytest.raises(ConfigError, match="unknown optimizer 'sgdd'"):
        costs_of(model, example, optimizer="sgdd")
    with pytest.raises(ConfigError, match="1 or more"):
        costs_of(model, example, samples=0)
    with pytest.raises(ConfigError, match="too few to profile"):
        costs_of(model, example, memory=1000)


def test_profiling_keeps_to_its_memory():
    model, example = nn.Sequential(nn.Linear(64, 4096), nn.Sigmoid(), nn.Linear(4096, 64)), torch.rand(2, 64)
    chain, budget = trace(model, example), 8 << 20  # of which the gradients are 2 MiB; 512 samples would take 16 MiB
    used = peak_bytes(lambda: profile(chain, example, samples=512, threads=1, memory=budget))
    assert used <= budget + (2 << 20)  # and what the optimizer's step is measured with


def test_a_model_on_the_meta_device_is_profiled_unit_by_unit():
    with torch.device("meta"):
        model = alexnet(width=1 / 4, size=67, classes=10)
    real = costs_of(alexnet(width=1 / 4, size=67, classes=10), torch.rand(2, 3, 67, 67), samples=4)
    chain = trace(model, torch.rand(2, 3, 67, 67))
    costs = profile(chain, torch.rand(2, 3, 67, 67), samples=4, threads=1)
    assert [unit.saved_bytes for unit in costs.units] == [unit.saved_bytes for unit in real.units]
    assert [unit.parameter_bytes for unit in costs.units] == [unit.parameter_bytes for unit in real.units]
    assert all(unit.forward.of(2) > 0 for unit in costs.units)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_the_bytes_kept_are_those_that_torch_allocates_for_a_forward():
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.Sigmoid())))
    example = torch.rand(64, 256)
    costs = costs_of(model, example, samples=64)
    outputs = []
    used = peak_bytes(lambda: outputs.append(model(example)))
    kept = 64 * sum(unit.saved_bytes for unit in costs.units)  # without the input, which was there before
    assert used == pytest.approx(kept + 64 * 1024, rel=0.02)  # and what the last Linear gives, for a moment


def test_what_devices_do_beside_their_layers_is_measured_once_and_never_negative():
    work = work_of_threads()
    assert work is work_of_threads()
    assert 0 < work.task_s < 1
    rate, latency = wire_of(work)
    assert rate > 0
    own = overheads_beside(work, rate, latency)
    handled = (own.send, own.receive, own.exchange, own.gather)
    assert all(one.fixed_s >= 0 and one.per_byte_s >= 0 for one in handled)
    assert own.add_s_per_byte > 0
    costs = costs_of(nn.Sequential(nn.Linear(4, 4)), torch.rand(4, 4))
    assert with_overheads(costs).overheads.task_s == work.task_s
    assert with_overheads(costs, "dgx1-v100").overheads.exchange.per_byte_s == 0.0


def test_a_planned_step_of_shards_has_the_tasks_that_run():
    model, x = transformer(layers=1), torch.randint(0, 96, (4, 8))
    chain = trace(model, x)
    stage = Stage(0, len(chain.units), (0, 1), 2)
    layout = Layout(tuple(unit.name for unit in chain.units), (replace(stage, ways=default_ways(chain, stage)),))
    costs = profile(chain, x, samples=4, threads=1)
    planned = Counter(task.kind for task in build_step(shape_of(layout, costs)).tasks)
    runs = Counter(task.kind for task in build_step(ChainShape.of(chain, layout).step(4, clip=False)).tasks)
    assert planned == runs  # what queries, keys and values read is exchanged once
