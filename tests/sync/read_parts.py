"""Datasets and loaders for the tests of reading only a worker's part, and what a worker is given of them."""

import random
from collections import Counter

import balanced
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, WeightedRandomSampler, default_collate

import gradtide
from gradtide.sync import Job

COUNT = 23


class Counted(Dataset):
    """Notes what is read of it, in this process."""

    def __init__(self, draws=None):
        self.reads, self._draws = Counter(), draws

    def __getitem__(self, index):
        self.reads[index] += 1
        drawn = 0.0 if self._draws is None else self._draws()
        return {"x": torch.arange(3.0) + index, "more": (index, f"word {index}"), "drawn": drawn}

    def __len__(self):
        return COUNT


class Batches:
    """Of different sizes, down to one sample, some samples twice."""

    def __iter__(self):
        order = torch.randperm(COUNT).tolist()
        return iter([order[:5], order[5:6], tuple(order[6:8]), torch.tensor(order[8:]), order[:1]])


PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
LOADERS = {
    "in order": lambda data: DataLoader(data, 6),
    "shuffle": lambda data: DataLoader(data, 6, shuffle=True),
    "one a batch": lambda data: DataLoader(data, 1, shuffle=True),
    "weights": lambda data: DataLoader(data, 6, sampler=WeightedRandomSampler([1.0] * COUNT, 20)),
    "batch sampler": lambda data: DataLoader(data, batch_sampler=Batches()),
    "a subset": lambda data: DataLoader(Subset(data, range(2, 20)), 6, shuffle=True, drop_last=True),
    "processes": lambda data: DataLoader(data, 6, shuffle=True, **PROCESSES),
    "processes that stay": lambda data: DataLoader(data, 6, shuffle=True, persistent_workers=True, **PROCESSES),
}


def seed_all(seed=5):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def give(loader, rank, size, *, read=None, shares=False, loss_at=None, epochs=2):
    """What one worker is given in some epochs, with what it counts. `loss_at`: the batch that is lost with the last
    worker, and comes again for those who are left. No worker waits for another here: all have the same seed."""
    seed_all()
    job, given = Job(rank, size), []
    balance = balanced.RandomShares(job) if shares else False
    for _ in range(epochs):
        for part in gradtide.shard(loader, read=read, balance=balance, job=job):
            given.append((part, job.share))
            if loss_at is not None and job.batches == loss_at and job.size == size:
                job.size, job.undone = size - 1, True
    return given, (torch.rand(1).item(), np.random.rand(), random.random()), job.reading


def flat(given):
    return [
        (share.samples, share.of, part["x"].tolist(), part["more"][0].tolist(), part["more"][1], part["drawn"].tolist())
        for part, share in given
    ]


def padded(samples):
    """What a user's collate function may do: as wide as the widest of the batch."""
    widest = max(sample["more"][0] for sample in samples)
    return torch.stack([torch.nn.functional.pad(sample["x"], (0, widest - 3)) for sample in samples])


def of_their_own(samples):
    return default_collate(samples)


def without_odd_ones(samples):
    return default_collate([sample for sample in samples if sample["more"][0] % 2 == 0])
