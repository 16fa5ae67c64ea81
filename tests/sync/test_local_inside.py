"""Local(within="host"): every step inside of a host, and now and then between hosts."""

import pytest
import torch
import training
from local_inside import NESTEROV, played, train

import gradtide
from gradtide.errors import ConfigError
from gradtide.sync import Local


@pytest.mark.parametrize(
    ("places", "on_hosts", "local", "batch"),
    [
        ([0, 0, 1, 1], (2, 2), Local(3, NESTEROV, within="host"), 29),
        ([0, 0, 0, 1], (3, 1), Local(2, within="host", after=2), 29),
        ([0, 0, 1, 1], (2, 2), Local(4, within="host"), 1),  # one host has no sample of any batch
    ],
)
def test_hosts_that_meet_now_and_then_do_what_one_process_that_plays_them_does(workers, places, on_hosts, local, batch):
    name = training.new_name()
    found = workers.run(train, 4, name, places, "momentum", local, batch)
    wanted = played("momentum", 4, local, on_hosts, batch)
    for parameters, _, said in found:
        assert all(torch.equal(a, b) for a, b in zip(parameters, wanted, strict=True))
        assert "each host steps by itself" in said
    sums = [sums for _, sums, _ in found]
    for step in range(9):
        for first, rank in enumerate(map(places.index, places)):
            assert sums[first][step] == sums[rank][step]
    apart = [step for step in range(9) if sums[0][step] != sums[3][step]]
    assert apart == [step for step in range(local.after, 9) if (step - local.after + 1) % local.every]


def test_on_one_host_every_step_is_taken_together_and_it_says_so(workers):
    found = workers.run(train, 2, training.new_name(), [0, 0], "momentum", Local(3, within="host"))
    wanted, _ = training.alone("mlp", "momentum", torch.float64, 9)
    for parameters, _, said in found:
        assert all(torch.allclose(a, b, atol=1e-10, rtol=0) for a, b in zip(parameters, wanted, strict=True))
        assert "all workers are on one host, inside of which every step is taken together" in said


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Local(2, within="rack"), "within='rack' makes no sense"),
        (lambda: Local(2, within="host", over=gradtide.Servers("bsp")), "leave within= or over= out"),
    ],
)
def test_what_makes_no_sense_inside_of_hosts_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
