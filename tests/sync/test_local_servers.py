"""Local steps over servers: what one process gives that plays all workers, bit for bit."""

import local_servers
import pytest
import torch
import training
from torch.nn import functional

import gradtide
from gradtide import Servers
from gradtide.even_share import even_share
from gradtide.sync import Local
from gradtide.testing.local_oracle import LocalPlan, play_local
from gradtide.testing.local_replay import Replay

NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


def named(mode="bsp"):
    return Servers(mode, name=training.new_name())


def played(optimizer, size, steps, local, batch=29, *, over_servers=True):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = play_local(
            training.build("mlp", torch.float64),
            lambda parameters: training.OPTIMIZERS[optimizer](parameters, 0.05),
            functional.cross_entropy,
            training.batches(torch.float64, steps, batch),
            size,
            LocalPlan(local.every, local.rule, local.after, over_servers=over_servers),
        )
    finally:
        torch.set_num_threads(threads)
    return [parameter.detach() for parameter in made.parameters()]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("optimizer", "local", "batch"),
    [
        ("momentum", {"every": 4}, 29),
        ("adamw", {"every": 3, "outer": NESTEROV}, 3),  # of three samples one of four workers has none
        ("momentum", {"every": 3, "outer": gradtide.update("adam", lr=0.01)}, 29),
        ("adamw", {"every": 2, "outer": gradtide.update("delayed_nesterov", lr=0.7, every=2)}, 29),
    ],
)
def test_workers_that_meet_at_the_servers_do_what_one_process_that_plays_them_does(
    stores, workers, size, optimizer, local, batch
):
    local = Local(**local, over=named())
    found = workers.run(local_servers.train, size, stores, "mlp", optimizer, 11, local, batch)
    wanted = played(optimizer, size, 11, local, batch)
    for parameters, _, _ in found:
        assert all(torch.equal(a, b) for a, b in zip(parameters, wanted, strict=True))


def part(rank, size, steps, batch=29):
    for x, y in training.batches(torch.float64, steps, batch):
        begin, end = even_share(len(x), rank, size)
        yield x[begin:end], y[begin:end]


@pytest.mark.parametrize(
    ("outer", "adapt"), [(gradtide.update("delayed_nesterov", lr=0.7, every=3), True), (NESTEROV, False), (None, False)]
)
def test_an_asynchronous_run_replays_from_its_recorded_order_to_the_same_bits(stores, workers, outer, adapt):
    local = Local(3, outer, over=named("async"), adapt=adapt)
    found = workers.run(local_servers.train, 3, stores, "mlp", "momentum", 13, local)
    assert all(sum(window.steps for window in windows) == 13 for _, _, windows in found)
    net = training.build("mlp", torch.float64)
    with gradtide.connect(stores) as store:
        keys = [f"{local.over.name}/{name}" for name, _ in net.named_parameters()]
        base = {key.rpartition("/")[2]: value for key, value in zip(keys, store.pull(keys), strict=True)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        replayed = Replay(
            net,
            lambda parameters: training.OPTIMIZERS["momentum"](parameters, 0.05),
            functional.cross_entropy,
            local.rule,
            {rank: windows for rank, (_, _, windows) in enumerate(found)},
            {rank: part(rank, 3, 13) for rank in range(3)},
            lambda name: f"{local.over.name}/{name}",
        ).run()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(replayed[name], value.reshape(-1)) for name, value in base.items())


def test_delayed_nesterov_is_an_outer_optimizer_without_servers_too(workers):
    local = Local(2, gradtide.update("delayed_nesterov", lr=0.7, every=2))
    found = workers.run(training.locally, 2, training.new_name(), "mlp", "momentum", torch.float64, 9, local, 0.05, 29)
    wanted = played("momentum", 2, 9, local, over_servers=False)
    for parameters, _, _ in found:
        assert all(torch.equal(a, b) for a, b in zip(parameters, wanted, strict=True))
