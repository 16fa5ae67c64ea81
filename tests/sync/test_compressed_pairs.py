"""Compression beside what else there is: shares by speed, clipping, servers with replicas that are killed."""

from contextlib import nullcontext

import compressing
import compressing_pairs
import numpy as np
import pytest
import torch
import training
from torch import nn

import gradtide
from gradtide.sync import Job, Local, Servers
from store_processes import LONG_LEASE_S, Killer

COLLECTIVE, OVER = {}, {"sync": Servers("bsp")}


def run(workers, stores, work, size, options, *more):
    through = "sync" in options
    options = {**options, "sync": Servers("bsp", name=training.new_name())} if through else options
    return workers.run(work, size, training.new_name(), options, stores if through else None, *more)


@pytest.mark.parametrize("compress", ["onebit", "topk:0.05"])
@pytest.mark.parametrize("way", [COLLECTIVE, OVER], ids=["collectives", "servers"])
def test_whatever_the_shares_nothing_of_weighted_gradients_is_lost(workers, stores, way, compress):
    answers = run(workers, stores, compressing_pairs.unequal, 3, {**way, "compress": compress})
    for index in range(len(compressing.SHAPES)):
        given, left = (sum(answer[place][index] for answer in answers) for place in (0, 2))
        assert np.abs(answers[0][1][index] + left - given).max() < 1e-9, index
    assert any(one.any() for one in answers[1][2])


def test_thin_matrices_of_weighted_gradients_lose_nothing_either(workers):
    answers = run(workers, None, compressing_pairs.unequal, 3, {"compress": "powersgd:1"})
    for index in range(len(compressing.SHAPES)):
        given, left = (sum(answer[place][index] for answer in answers) for place in (0, 2))
        assert np.abs(answers[0][1][index] + left - given).max() < 1e-9, index


@pytest.mark.parametrize("clip_norm", [50.0, 1e9])
@pytest.mark.parametrize("way", [COLLECTIVE, OVER], ids=["collectives", "servers"])
def test_what_all_send_is_clipped_when_it_has_come_and_what_is_left_out_is_not(workers, stores, way, clip_norm):
    answers = run(workers, stores, compressing_pairs.clipped, 2, {**way, "compress": "topk:0.2"}, clip_norm)
    for index in range(len(compressing.SHAPES)):
        for wanted, moved, came, *_ in answers:
            assert np.array_equal(moved[index], answers[0][1][index])
            assert np.array_equal(came[index], answers[0][2][index])
            assert np.abs(wanted[index] - moved[index]).max() < 1e-9
        given, left = (sum(answer[place][index] for answer in answers) for place in (3, 4))
        off = np.abs(answers[0][2][index] + left - given)
        assert way is OVER or off.max() == 0.0  # servers keep what their answers left out besides


WAYS = {
    "servers that step": {"sync": lambda over: over},
    "servers that average": {"sync": lambda over: over, "share_parameters": False},
    "local steps": {"sync": lambda over: Local(2, gradtide.update("sgd", lr=0.7, momentum=0.9), over=over)},
}


@pytest.mark.parametrize(
    ("way", "compress", "kills"),
    [
        ("servers that step", "topk:0.1", [3]),
        ("local steps", "topk:0.1", [4]),
        pytest.param("servers that average", "topk:0.1", [3, 6], marks=pytest.mark.slow),
        pytest.param("servers that step", "onebit", [3, 6], marks=pytest.mark.slow),
        pytest.param("local steps", "onebit", [3, 6], marks=pytest.mark.slow),
    ],
)
def test_a_server_with_a_replica_that_is_killed_in_a_training_changes_no_bit(forks, way, compress, kills):
    with gradtide.local_servers(2, replicas=1, lease_s=LONG_LEASE_S, forks=forks) as servers:
        calm, fire = (trained(servers, way, compress, kills, killer) for killer in (None, Killer(servers)))
    assert all(torch.equal(a, b) for a, b in zip(calm[0], fire[0], strict=True))
    assert calm[1].keys() == fire[1].keys()
    assert all(torch.equal(left, fire[1][name]) for name, left in calm[1].items())
    assert any(left.any() for left in calm[1].values())


def trained(servers, way, compress, kills, killer):
    """The parameters, and what is left out, after ten steps; in some of them a server is killed."""
    torch.manual_seed(3)
    net, options = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4)), dict(WAYS[way])
    rule = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    sync = options.pop("sync")(Servers("bsp", servers.address, name=training.new_name()))
    model = gradtide.DataParallel(net, rule, sync, compress=compress, job=Job(), **options)
    for step in range(10):
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        if killer is not None and step in kills:
            killer.kill(model._synchroniser.way.store, f"server-{step % 2}")
        model.step()
    left = {name: value for name, value in model.sync_state()["compression"].items() if name.startswith("left ")}
    model.close()
    return [p.detach().clone() for p in net.parameters()], left


@pytest.mark.parametrize("way", [{}, OVER], ids=["collectives", "servers"])
def test_a_loop_of_ones_own_keeps_its_own_and_is_told_what_it_can_not_load(way, forks):
    with gradtide.local_servers(1, forks=forks) if way else nullcontext() as servers:
        net = nn.Linear(3, 2)
        rule = torch.optim.SGD(net.parameters(), lr=0.1)
        sync = Servers("bsp", servers.address) if way else "auto"
        model = gradtide.DataParallel(net, rule, sync, compress="topk:0.5", job=Job())
        other = {} if not way else {"counts": torch.tensor([1, 1])}
        said = "was kept without servers" if way else "was kept over servers"
        with pytest.raises(gradtide.errors.ConfigError, match=said):
            model.load_sync_state({"compression": {**other, "left weight": torch.ones(6)}})
        model.close()
