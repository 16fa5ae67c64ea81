"""All workers go over the same batches: a DataLoader's order is agreed on, anything else is compared."""

import re
from contextlib import nullcontext
from itertools import zip_longest

import pytest
import sharded
import torch
import training
from torch.utils.data import DataLoader, DistributedSampler

import gradtide
from gradtide.errors import ConfigError, DataError
from gradtide.sync import Job, Servers
from gradtide.sync.job import Elastic


def joined(found):
    """What all workers were given, batch by batch."""
    return [
        [n for part in parts for n in part] for parts in zip_longest(*(given for given, _ in found), fillvalue=[-1])
    ]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("which", sharded.LOADERS)
def test_a_loader_gives_what_it_would_give_in_one_process_whatever_the_others_seeds(workers, which, size):
    found = workers.run(sharded.agree, size, training.new_name(), which, [5, 6, 7])
    wanted, _ = sharded.alone(which, 5)
    assert joined(found) == wanted


@pytest.mark.parametrize("stop", [None, 2])
@pytest.mark.parametrize("which", sharded.LOADERS)
def test_generators_that_are_alike_stay_so_and_are_where_they_are_in_one_process(workers, which, stop):
    found = workers.run(sharded.agree, 2, training.new_name(), which, [5, 5], stop)
    given, after = sharded.alone(which, 5, stop)
    assert joined(found) == given
    assert [numbers for _, numbers in found] == [after, after]


WAYS = {
    "shared parameters": {},
    "all-reduce": {"share_parameters": False},
    "ring": {"sync": "ring"},
    "servers": {"sync": Servers("bsp")},
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_training_on_an_unseeded_shuffle_is_what_worker_0_would_have_trained_alone(forks, workers, way, size):
    torch.manual_seed(5)
    wanted = sharded.train(None, {})
    with gradtide.local_servers(1, forks=forks) if way == "servers" else nullcontext() as servers:
        store = servers.address if servers is not None else None
        for found in workers.run(sharded.train_together, size, training.new_name(), WAYS[way], store):
            for a, b in zip(found, wanted, strict=True):
                assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_a_sampler_without_end_is_followed_as_far_as_it_is_asked(workers):
    first, second = workers.run(sharded.endless, 2, training.new_name())
    assert [len(a) + len(b) for a, b in zip(first, second, strict=True)] == [5] * 20


@pytest.mark.parametrize("which", sharded.REFUSED)
@pytest.mark.parametrize("size", [2, 3])
def test_batches_that_differ_are_refused_on_all_workers_before_anything_is_trained(workers, which, size):
    line = sharded.REFUSED[which][2]
    for said, trained in workers.run(sharded.refuse, size, training.new_name(), which):
        assert re.search(line, said)
        assert "\n" not in said
        assert trained == (which == "a sampler that fails")


def test_what_may_differ_is_not_compared(workers):
    first, second = workers.run(sharded.unchecked, 2, training.new_name())
    assert first == [[10.0] * 2, [11.0] * 2, [12.0] * 2]
    assert second == [[0.0] * 2, [1.0] * 2, [2.0] * 2]


def test_a_loader_that_cuts_already_or_keeps_no_order_is_refused():
    sampler = DistributedSampler(sharded.NUMBERS, num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match="leave shard out"):
        gradtide.shard(DataLoader(sharded.NUMBERS, 5, sampler=sampler), job=Job(0, 2))
    with pytest.raises(ConfigError, match="leave in_order out"):
        next(iter(gradtide.shard(DataLoader(sharded.NUMBERS, 5, num_workers=2, in_order=False), job=Job(0, 2))))


def come(address, number, **state):
    """One of two workers that come and go by themselves over servers."""
    return Job(number, 2, store=address, elastic=Elastic("unix:/nowhere", "a job", number), **state)


def test_over_servers_that_outlive_workers_an_order_must_be_seeded(forks):
    with pytest.raises(ConfigError, match=r"generator=torch.Generator\(\).manual_seed\(0\)"):
        next(iter(gradtide.shard(DataLoader(sharded.NUMBERS, 5, shuffle=True), job=come("unix:/nowhere", 0))))

    def given(address, number, seed, **state):
        loader = DataLoader(sharded.NUMBERS, 5, shuffle=True, generator=torch.Generator().manual_seed(seed))
        return [batch[0].tolist() for batch in gradtide.shard(loader, job=come(address, number, **state))]

    with gradtide.local_servers(1, forks=forks) as servers:
        first, second = (given(servers.address, number, 0) for number in range(2))
        assert sorted(n for part in first + second for n in part) == list(range(sharded.COUNT))
        assert given(servers.address, 1, 0, behind=7) == second[7:]  # it was started again
        with pytest.raises(DataError, match="worker 1 has another first batch than the first one to come"):
            given(servers.address, 1, 1, behind=7)


def test_over_servers_that_outlive_workers_first_batches_are_compared_with_the_first_workers(forks):
    with gradtide.local_servers(1, forks=forks) as servers:
        first = gradtide.shard([torch.zeros(4), torch.ones(4)], job=come(servers.address, 0))
        assert [part.tolist() for part in first] == [[0, 0], [1, 1]]
        with pytest.raises(DataError, match="worker 1 has another first batch than the first one to come"):
            next(iter(gradtide.shard([torch.ones(4)], job=come(servers.address, 1, behind=1))))
        again = gradtide.shard([torch.zeros(4), torch.ones(4)], job=come(servers.address, 1, behind=1))
        assert [part.tolist() for part in again] == [[1, 1]]


def _samples(loader, job):
    return [batch.tolist() for batch in gradtide.shard(loader, job=job)]


def _shuffled(seed=7):
    return DataLoader(torch.arange(12), 4, shuffle=True, generator=torch.Generator().manual_seed(seed))


def test_over_servers_a_newcomer_in_a_later_epoch_takes_the_order_of_that_epoch():
    job, loader = Job(1, 2, elastic=Elastic("", "a job", 1), apart=True), _shuffled()
    epochs = []
    for job.epoch in range(3):
        epochs.append(_samples(loader, job))
    newcomer = Job(1, 2, elastic=Elastic("", "a job", 1), apart=True, state={"epoch": 2}, resumed=True)
    newcomer.loops, newcomer.epoch_began, newcomer.behind = job.loops, 6, 7
    assert newcomer.epoch == 2
    assert _samples(_shuffled(), newcomer) == epochs[2][1:]
    assert epochs[2] != epochs[0]


def test_over_servers_a_newcomer_with_another_order_in_a_later_epoch_is_refused():
    others, own = [[torch.arange(4) + 4 * n for n in order] for order in ((1, 0, 2), (0, 1, 2))]
    job = Job(1, 2, elastic=Elastic("", "a job", 1), apart=True)
    job.epoch = 1
    _samples(others, job)
    newcomer = Job(1, 2, elastic=Elastic("", "a job", 1), apart=True, state={"epoch": 1}, loops=job.loops)
    with pytest.raises(DataError, match="worker 1, which came later, begins this loop with another batch"):
        _samples(own, newcomer)


def test_one_worker_gets_the_loaders_own_batches():
    torch.manual_seed(3)
    wanted = [batch[0].tolist() for batch in DataLoader(sharded.NUMBERS, 7, shuffle=True)]
    torch.manual_seed(3)
    loader = DataLoader(sharded.NUMBERS, 7, shuffle=True)
    assert [batch[0].tolist() for batch in gradtide.shard(loader, job=Job())] == wanted
