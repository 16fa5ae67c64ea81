"""Training together equals training alone, whichever way the gradients go."""

import pytest
import torch
import training

import gradtide
from gradtide.errors import ConfigError
from gradtide.schedule.strategies import STRATEGIES

WAYS = {
    "shared parameters": {},
    "all-reduce": {"share_parameters": False},
    "no overlap": {"share_parameters": False, "overlap": False},
    **{name: {"sync": name} for name in ("root", "sharded", "ring", "ring-both-ways", "tree", "double-tree")},
    **{name: {"sync": name} for name in ("halving-doubling", "hierarchical", "packed-trees", "rings")},
}


def run(workers, size, model, optimizer, dtype, steps, options):
    return workers.run(training.together, size, training.new_name(), model, optimizer, dtype, steps, options)


def furthest(found, wanted):
    return max((a - b).abs().max().item() for of_worker in found for a, b in zip(of_worker[0], wanted, strict=True))


@pytest.fixture(scope="session")
def references():
    known = {}

    def get(*what):
        if what not in known:
            known[what] = training.alone(*what)
        return known[what]

    return get


@pytest.mark.quick
def test_every_strategy_is_among_the_ways():
    of_clusters = {name for name in STRATEGIES if name.startswith("hierarchical-")} | {"balanced-rails"}
    assert set(STRATEGIES) - {"host", "servers", "rings-one-way"} - of_clusters <= set(WAYS)


def ways_and_sizes():
    """Every way with three workers; with two and four those that are not one of the planner's schedules."""
    for model, size in (("mlp", 3), ("mlp", 2), ("lenet", 4)):
        for way, options in WAYS.items():
            repeats = "sync" in options and size != 3
            yield pytest.param(model, size, way, 50, marks=pytest.mark.slow)
            yield pytest.param(model, size, way, 12, marks=[pytest.mark.slow] if repeats else [])


@pytest.mark.parametrize(("model", "size", "way", "steps"), list(ways_and_sizes()))
def test_workers_train_as_one_process_does(workers, references, way, model, size, steps):
    wanted, losses = references(model, "sgd", torch.float64, steps)
    assert losses[-1] < losses[0]
    if way == "hierarchical" and size == 2:
        pytest.skip("two workers have nothing to be hierarchical about")
    found = run(workers, size, model, "sgd", torch.float64, steps, dict(WAYS[way]))
    assert furthest(found, wanted) < 1e-10


@pytest.mark.quick
@pytest.mark.parametrize("way", ["shared parameters", "all-reduce", "ring"])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_float32_stays_close_for_twenty_steps(workers, references, way, model):
    wanted, losses = references(model, "sgd", torch.float32, 20)
    assert losses[-1] < losses[0]
    assert furthest(run(workers, 2, model, "sgd", torch.float32, 20, dict(WAYS[way])), wanted) < 1e-5


@pytest.mark.parametrize("optimizer", training.OPTIMIZERS)
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_every_optimizer_steps_shared_parameters_as_torch_does(workers, references, optimizer, size):
    wanted, _ = references("mlp", optimizer, torch.float64, 20)
    found = run(workers, size, "mlp", optimizer, torch.float64, 20, {})
    assert ("parameters are shared" in found[0][1]) == (size > 1)
    assert furthest(found, wanted) < 1e-10


@pytest.mark.quick
def test_the_optimizers_state_is_whole_on_every_worker(workers, references):
    net = training.build("mlp", torch.float64)
    alone = torch.optim.Adam(net.parameters(), lr=0.005)
    for x, y in training.batches(torch.float64, 5):
        alone.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        alone.step()
    wanted = alone.state_dict()["state"]
    for _, _, found in run(workers, 3, "mlp", "adam", torch.float64, 5, {}):
        assert found.keys() == wanted.keys()
        for index, state in wanted.items():
            assert found[index].keys() == state.keys()
            for name, value in state.items():
                assert torch.allclose(found[index][name], value, rtol=0, atol=1e-12), (index, name)


@pytest.mark.parametrize("options", [{}, {"share_parameters": False}], ids=["shared", "all-reduce"])
@pytest.mark.parametrize("case", training.CASES)
def test_what_users_do_works_as_in_plain_pytorch(workers, case, options):
    wanted = training.CASES[case](None, {})
    for found in workers.run(training.run_case, 2, training.new_name(), case, options):
        for a, b in zip(found, wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"share_parameters": False}], ids=["shared", "all-reduce"])
def test_bfloat16_autocast_trains_as_plain_pytorch_does_on_the_same_parts(workers, options):
    wanted, losses = training.autocast_alone(2, 10)
    assert losses[-1] < losses[0]
    for found in workers.run(training.autocast, 2, training.new_name(), options, 10):
        for a, b in zip(found, wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6)


def test_a_model_that_nobody_can_train_is_refused_in_one_line():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="no parameter of Linear"):
        gradtide.DataParallel(model, torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))
    both = [*model.parameters(), *torch.nn.Linear(2, 2).parameters()]
    with pytest.raises(ConfigError, match="2 of the optimizer's parameters are not the model's"):
        gradtide.DataParallel(model, torch.optim.SGD(both, lr=0.1))
    with pytest.raises(ConfigError, match="LBFGS steps with a closure"):
        gradtide.DataParallel(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ConfigError, match="clip_norm is -1"):
        gradtide.DataParallel(model, torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=-1)


@pytest.mark.parametrize("mistake", training.MISTAKES)
def test_a_mistake_is_one_clear_line_on_every_worker(workers, mistake):
    for found in workers.run(training.make_mistake, 2, training.new_name(), mistake):
        assert training.MISTAKES[mistake][1] in found
        assert "\n" not in found


def test_workers_with_fewer_batches_end_cleanly(workers):
    for options in ({}, {"share_parameters": False}):
        found = workers.run(training.uneven, 3, training.new_name(), options)
        for of_worker in found[1:]:
            for a, b in zip(of_worker, found[0], strict=True):
                assert torch.equal(a, b)
        for a, b in zip(found[0], training.uneven_alone(3), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)
