"""A worker reads only its part of a batch: just what it would have cut from the whole one, or it reads the whole."""

import random
import re
import weakref

import numpy as np
import pytest
import read_parts
import torch
from read_parts import COUNT, Counted, flat, give
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.errors import ConfigError, DataError
from gradtide.sync import Job

CHANGES = {"even": {}, "other shares every time": {"shares": True}, "a worker is lost": {"loss_at": 3}}


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("which", read_parts.LOADERS)
def test_a_part_that_is_read_alone_is_that_of_the_whole_batch(which, changes):
    for rank in range(2):
        loader = read_parts.LOADERS[which]
        alone, after, _ = give(loader(Counted()), rank, 3, **CHANGES[changes])
        whole, wanted, _ = give(loader(Counted()), rank, 3, read="whole", **CHANGES[changes])
        assert flat(alone) == flat(whole)
        assert after == wanted


@pytest.mark.parametrize(("read", "times"), [(None, 1), ("whole", 3)])
def test_each_sample_is_read_once_by_all_workers_together(read, times):
    data = Counted()
    for rank in range(3):
        give(DataLoader(data, 6, shuffle=True), rank, 3, read=read, epochs=1)
    assert data.reads == dict.fromkeys(range(COUNT), times)


def test_what_was_read_ahead_for_others_is_read_again_and_no_more_than_that():
    data = Counted()
    loader = DataLoader(data, 6)
    give(loader, 0, 3, loss_at=2, epochs=1)
    # Two of each batch of six, then three; the second batch is cut for three after it was read for two.
    assert data.reads == {0: 1, 1: 1, 6: 2, 7: 2, 8: 1, 12: 1, 13: 1, 14: 1, 18: 1, 19: 1}


DRAWS = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": lambda: float(np.random.rand()),
    "python": random.random,
}


@pytest.mark.parametrize("which", DRAWS)
def test_a_dataset_that_draws_in_the_workers_process_is_read_whole_as_in_one_process(which):
    read_parts.seed_all()
    alone = [one for batch in DataLoader(Counted(DRAWS[which]), 6) for one in batch["drawn"].tolist()]
    wanted = (torch.rand(1).item(), np.random.rand(), random.random())
    found = [give(DataLoader(Counted(DRAWS[which]), 6), rank, 2, epochs=1) for rank in range(2)]
    parts = zip(*(given for given, _, _ in found), strict=True)
    assert [one for batch in parts for part, _ in batch for one in part["drawn"].tolist()] == alone
    assert [after for _, after, _ in found] == [wanted, wanted]


@pytest.mark.parametrize("which", DRAWS)
def test_with_read_part_each_worker_draws_its_own_and_leaves_the_generators_alone(which):
    data = Counted(DRAWS[which])
    found = [give(DataLoader(data, 6), rank, 2, read="part") for rank in range(2)]
    drawn = [one for given, _, _ in found for part, _ in given for one in part["drawn"].tolist()]
    assert len(set(drawn)) == 2 * COUNT  # no two alike, in both epochs
    assert data.reads == dict.fromkeys(range(COUNT), 2)
    assert found[0][1] == found[1][1] == give(DataLoader(Counted(), 6), 0, 2)[1]


def test_processes_of_workers_that_are_seeded_alike_draw_different_numbers():
    loader = read_parts.LOADERS["processes"]
    found = [give(loader(Counted(DRAWS["torch"])), rank, 2) for rank in range(2)]
    drawn = [one for given, _, _ in found for part, _ in given for one in part["drawn"].tolist()]
    assert len(set(drawn)) == 2 * COUNT
    assert found[0][1] == found[1][1]
    assert "what the dataset draws at random is each worker's own" in found[0][2]


def test_a_collate_function_of_ones_own_is_given_the_whole_batch_unless_a_part_will_do():
    def widths(read):
        return [
            part.shape[1] for part, _ in give(DataLoader(data, 6, collate_fn=read_parts.padded), 0, 2, read=read)[0]
        ]

    data = Counted()
    assert widths(None) == [5, 11, 17, 22] * 2  # as in one process
    assert data.reads == dict.fromkeys(range(COUNT), 2)
    assert widths("part") == [2, 8, 14, 19] * 2
    *_, reading = give(DataLoader(data, 6, collate_fn=read_parts.padded), 0, 2)
    assert reading.startswith("every worker reads whole batches: collate_fn=padded may mix samples or pad them; read=")


def test_a_part_of_which_samples_are_left_out_is_refused():
    with pytest.raises(DataError, match=r"made 2 samples of 3 indices, .* say shard\(..., read='whole'\)"):
        give(DataLoader(Counted(), 6, collate_fn=read_parts.without_odd_ones), 0, 2, read="part")


class InItsOwnWay(DataLoader):
    def __iter__(self):
        return (batch for batch in super().__iter__())


NUMBERS, PAIRS = TensorDataset(torch.arange(8)), TensorDataset(torch.arange(8), torch.arange(8))
REFUSED = {
    "a list": (lambda: [torch.zeros(4)], {}, "only a DataLoader over a Dataset with a length"),
    "a loader of another kind": (lambda: InItsOwnWay(NUMBERS, 4), {}, "InItsOwnWay goes over its batches in a way"),
    "what is to stay whole": (lambda: DataLoader(PAIRS, 4), {"whole": ["0"]}, "whole=['0'] is of the whole batch"),
    "no order": (lambda: DataLoader(NUMBERS, 4), {"check": False}, "with check=False workers agree on no order"),
    "no indices": (lambda: DataLoader(NUMBERS, batch_size=None), {}, "this sampler gives 0 for a batch"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_a_part_that_cannot_be_read_alone_is_refused_in_one_line_and_read_whole_if_nobody_asks(which):
    make, options, line = REFUSED[which]
    with pytest.raises(ConfigError, match=re.escape(line)) as found:
        next(iter(gradtide.shard(make(), read="part", job=Job(0, 2), **options)))
    assert "\n" not in str(found.value)
    if which != "no indices":
        assert next(iter(gradtide.shard(make(), job=Job(0, 2), **options)))[0] is not None


def test_lists_of_indices_are_cut_for_a_dataset_that_makes_whole_batches():
    batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(NUMBERS), 4, False)
    loader = DataLoader(NUMBERS, sampler=batches, batch_size=None)
    given = [part[0].tolist() for part in gradtide.shard(loader, read="part", job=Job(1, 2))]
    assert given == [[2, 3], [6, 7]]


def test_a_word_that_says_nothing_of_reading_is_refused():
    with pytest.raises(ConfigError, match=r"shard: read='all'; say 'part', 'whole' or None"):
        gradtide.shard([], read="all", job=Job())


def test_a_loader_that_is_forgotten_in_the_middle_ends_its_processes():
    loader = read_parts.LOADERS["processes that stay"](Counted())
    next(iter(gradtide.shard(loader, job=Job(0, 2))))
    forgotten = weakref.ref(loader)
    del loader
    assert forgotten() is None
