"""Training through servers."""

import threading

import pytest
import torch
import training

import gradtide
from gradtide import Servers
from gradtide.errors import ConfigError
from gradtide.sync import Job


def run(forks, workers, size, mode, model, optimizer, steps, **options):
    with gradtide.local_servers(2, forks=forks) as servers:
        options = {"sync": Servers(mode), "store": servers.address, **options}
        name = training.new_name()
        return workers.run(training.together, size, name, model, optimizer, torch.float64, steps, options)


def furthest(found, wanted):
    return max((a - b).abs().max().item() for of_worker in found for a, b in zip(of_worker[0], wanted, strict=True))


@pytest.mark.parametrize(
    ("mode", "size", "model", "steps"),
    [
        ("bsp", 1, "mlp", 50),
        ("bsp", 3, "lenet", 20),
        pytest.param("bsp", 3, "lenet", 50, marks=pytest.mark.slow),
        ("bounded:0", 2, "mlp", 50),
    ],
)
def test_workers_with_servers_train_as_one_process_does(forks, workers, mode, size, model, steps):
    wanted, losses = training.alone(model, "sgd", torch.float64, steps)
    assert losses[-1] < losses[0]
    found = run(forks, workers, size, mode, model, "sgd", steps)
    assert "the servers step" in found[0][1]
    assert furthest(found, wanted) < 1e-10


@pytest.mark.quick
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw", "adagrad", "rmsprop"])
def test_servers_step_with_any_elementwise_optimizer(forks, workers, optimizer):
    wanted, _ = training.alone("mlp", optimizer, torch.float64, 10)
    assert furthest(run(forks, workers, 2, "bsp", "mlp", optimizer, 10), wanted) < 1e-10


def test_an_optimizer_whose_training_ended_in_an_error_goes_on_once_it_is_given_a_state(forks):
    net = torch.nn.Linear(3, 1)
    rule = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with gradtide.local_servers(1, forks=forks) as servers:
        model = gradtide.DataParallel(net, rule, Servers("bsp", servers.address), job=Job())
        model(torch.ones(2, 3)).sum().backward()
        model.step()
        model.abandon()
    for touch in (rule.state.clear, rule.state_dict):
        with pytest.raises(ConfigError, match="and with it what the servers' optimizers had learnt"):
            touch()
    rule.load_state_dict(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9).state_dict())
    net(torch.ones(2, 3)).sum().backward()
    rule.step()
    assert len(rule.state) == 2


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


def test_a_second_backward_is_refused_once_the_first_has_left(forks):
    """In the first steps gradients wait for one more backward; when none came, they leave as backward goes on."""
    net, x = torch.nn.Linear(3, 1), torch.randn(4, 3)
    with gradtide.local_servers(1, forks=forks) as servers:
        rule = torch.optim.SGD(net.parameters(), lr=0.1)
        model = gradtide.DataParallel(net, rule, Servers("bsp", servers.address), job=Job())
        for _step in range(3):
            model(x).square().mean().backward()
            model.step()
        model(x).square().mean().backward()
        with pytest.raises(ConfigError, match=r"put all but the last backward in no_sync\(\)"):
            model(x).square().mean().backward()
        model.close()


def test_who_ends_first_is_still_known_to_those_who_are_behind(forks):
    """With bounded:2 a worker may end two rounds before the other, which must go on with its own half of those."""
    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)]
    jobs, shares, ending = [Job(rank, 2) for rank in range(2)], {0: [], 1: []}, threading.Event()
    made = threading.Barrier(2)

    def train(rank, address):
        net = torch.nn.Linear(3, 1)
        rule = torch.optim.SGD(net.parameters(), lr=0.1)
        model = gradtide.DataParallel(net, rule, Servers("bounded:2", address), job=jobs[rank])
        made.wait(30)
        if rank:
            assert ending.wait(30)
            model._synchroniser.way.store.keys()  # so that what the coordinator has said is heard
        for x, y in gradtide.shard(data, job=jobs[rank]):
            shares[rank].append(jobs[rank].share.samples)
            torch.nn.functional.mse_loss(model(x), y).backward()
            model.step()
        if rank == 0:
            ending.set()
        model.close()

    with gradtide.local_servers(1, forks=forks) as servers:
        threads = [threading.Thread(target=train, args=(rank, servers.address)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert shares == {0: [2, 2], 1: [2, 2]}
    assert [(job.rank, job.size) for job in jobs] == [(0, 2), (1, 2)]  # as before: the job goes on
