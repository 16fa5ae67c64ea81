"""Local steps over servers: what one process gives that plays all workers, bit for bit."""

import local_servers
import pytest
import torch
import training
from torch.nn import functional

import gradtide
from gradtide import Servers
from gradtide.sync import Local
from gradtide.testing.local_oracle import LocalPlan, play_local

NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


@pytest.fixture(scope="module")
def stores(forks):
    """The address of servers that are there for all of these tests; each trains under a name of its own."""
    with gradtide.local_servers(2, forks=forks) as servers:
        yield servers.address


def named():
    return Servers("bsp", name=training.new_name())


def played(optimizer, size, steps, local, batch=29):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = play_local(
            training.build("mlp", torch.float64),
            lambda parameters: training.OPTIMIZERS[optimizer](parameters, 0.05),
            functional.cross_entropy,
            training.batches(torch.float64, steps, batch),
            size,
            LocalPlan(local.every, local.rule, local.after, over_servers=True),
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
