"""Shares that follow speed: exact whatever they are, the same on all workers, on every way that waits."""

from contextlib import nullcontext

import balanced
import pytest
import torch
import training

import gradtide
from gradtide.errors import ConfigError
from gradtide.sync import Job, Local, Servers

WAYS = {
    "shared parameters": {"share_parameters": True},
    "after a trial": {},
    "all-reduce": {"share_parameters": False},
    "ring": {"sync": "ring"},
    "servers that step": {"sync": Servers("bsp")},
    "servers that average": {"sync": Servers("bsp"), "share_parameters": False},
    "local steps": {"sync": Local(1)},
}
TWICE = {0: (1e-3, 2e-3, 1e-3)}  # worker 1 takes twice as long


def run(workers, forks, size, options, *more):
    through = isinstance(options.get("sync"), Servers)
    with gradtide.local_servers(1, forks=forks) if through else nullcontext() as servers:
        store = servers.address if through else None
        return workers.run(balanced.train, size, training.new_name(), options, store, *more)


@pytest.mark.parametrize("way", WAYS)
def test_random_shares_at_every_step_train_what_one_process_trains(forks, workers, way):
    """Parts of no samples among them."""
    optimizer = balanced.plain if way == "local steps" else balanced.momentum
    wanted = balanced.alone(optimizer)
    for found, *_ in run(workers, forks, 3, WAYS[way], None, "plain", optimizer):
        for a, b in zip(found, wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "local steps"] + ["bounded"])
def test_a_worker_that_takes_twice_as_long_gets_half_as_much(forks, workers, way):
    options = {"sync": Servers("bounded:2")} if way == "bounded" else WAYS[way]
    found = run(workers, forks, 2, options, TWICE)
    wanted = balanced.alone(balanced.momentum)
    first = found[0][1]
    assert first[0] == (12, 12)  # even
    assert first[5] == first[-1] == (16, 8)
    for parameters, seen, said, changes in found:
        assert seen == first  # the same on all workers
        assert "worker 1 takes 8 of 24 samples (2 ms a sample)" in said
        assert [change.samples for change in changes] == [[16, 8]]
        for a, b in zip(parameters, wanted, strict=True):
            assert way == "bounded" or torch.allclose(a, b, rtol=0, atol=1e-10)


def test_shares_follow_a_worker_that_becomes_faster(forks, workers):
    changing = {0: (1e-3, 4e-3), 12: (2e-3, 1e-3)}
    (_, seen, _, changes), _ = run(workers, forks, 2, {}, changing)
    assert seen[11] == (19, 5)
    assert seen[-1] in ((8, 16), (9, 15))
    assert len(changes) <= 4


def test_with_batch_norm_a_part_has_two_samples_at_least(forks, workers):
    (_, seen, _, _), _ = run(workers, forks, 2, {}, {0: (1e-3, 1.0)}, "batch norm")
    assert seen[-1] == (22, 2)
    (_, seen, _, _), _ = run(workers, forks, 2, {}, {0: (1e-3, 1.0)})
    assert seen[-1] == (23, 1)


def test_an_epoch_begins_with_what_the_last_one_knew(workers):
    for same, measurements, over in workers.run(balanced.measured, 2, training.new_name()):
        assert same
        assert measurements >= 3  # a change of speed may have had some of the nine forgotten
        assert over


def test_in_async_balance_is_refused_before_a_batch_is_given(forks, workers):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {"sync": Servers("async")}
        for said in workers.run(balanced.refused, 2, training.new_name(), options, servers.address):
            assert said == (
                "balance is for workers that wait for each other; in async nobody does: leave balance out, or use 'bsp'"
            )


def test_what_is_neither_yes_nor_no_is_refused():
    with pytest.raises(ConfigError, match=r"shard: balance='fast'; say True or False"):
        gradtide.shard([], balance="fast", job=Job())


def test_one_worker_takes_all():
    given = [len(part) for part in gradtide.shard([torch.zeros(5)] * 2, balance=True, job=Job())]
    assert given == [5, 5]
