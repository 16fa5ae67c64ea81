"""Training through servers."""

import pytest
import torch
import training

import gradtide
from gradtide import Servers


def run(forks, workers, size, mode, model, optimizer, steps, **options):
    with gradtide.local_servers(2, forks=forks) as servers:
        options = {"sync": Servers(mode), "store": servers.address, **options}
        name = training.new_name()
        return workers.run(training.together, size, name, model, optimizer, torch.float64, steps, options)


def furthest(found, wanted):
    return max((a - b).abs().max().item() for of_worker in found for a, b in zip(of_worker[0], wanted, strict=True))


@pytest.mark.parametrize(("mode", "size", "model"), [("bsp", 1, "mlp"), ("bsp", 3, "lenet"), ("bounded:0", 2, "mlp")])
def test_workers_with_servers_train_as_one_process_does(forks, workers, mode, size, model):
    wanted, losses = training.alone(model, "sgd", torch.float64, 50)
    assert losses[-1] < losses[0]
    found = run(forks, workers, size, mode, model, "sgd", 50)
    assert "the servers step" in found[0][1]
    assert furthest(found, wanted) < 1e-10


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw", "adagrad", "rmsprop"])
def test_servers_step_with_any_elementwise_optimizer(forks, workers, optimizer):
    wanted, _ = training.alone("mlp", optimizer, torch.float64, 10)
    assert furthest(run(forks, workers, 2, "bsp", "mlp", optimizer, 10), wanted) < 1e-10


@pytest.mark.parametrize("mode", ["bounded:2", "async"])
def test_looser_modes_learn_too(forks, workers, mode):
    _, losses = training.alone("mlp", "sgd", torch.float64, 30)
    found = run(forks, workers, 2, mode, "mlp", "sgd", 30)
    net = training.build("mlp", torch.float64)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), found[0][0], strict=True):
            parameter.copy_(value)
        x, y = next(training.batches(torch.float64, 1))
        assert torch.nn.functional.cross_entropy(net(x), y).item() < 0.8 * losses[0]


@pytest.mark.parametrize("case", sorted(set(training.CASES) - {"saving"}))
def test_what_users_do_works_with_servers(forks, workers, case):
    wanted = training.CASES[case](None, {})
    with gradtide.local_servers(2, forks=forks) as servers:
        options = {"sync": Servers("bsp", servers.address)}
        for found in workers.run(training.run_case, 2, training.new_name(), case, options):
            for a, b in zip(found, wanted, strict=True):
                assert torch.allclose(a, b, rtol=0, atol=1e-10)
