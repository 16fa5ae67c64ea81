"""What the workers' processes of the tests of shard do."""

import multiprocessing
import random

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import gradtide
import gradtide.errors
from gradtide.collective import Group
from gradtide.sync import Job

COUNT = 50
NUMBERS = TensorDataset(torch.arange(COUNT))


class Eager:
    """Draws when iter() is called, as many samplers of users do, from a generator that is not torch's."""

    def __iter__(self):
        return iter(np.random.permutation(COUNT))

    def __len__(self):
        return COUNT


class Lazy:
    """Draws from torch's generator before each batch."""

    def __iter__(self):
        for _ in range(6):
            yield torch.randint(COUNT, (7,))

    def __len__(self):
        return 6


class Endless:
    def __iter__(self):
        while True:
            yield [random.randrange(COUNT) for _ in range(5)]


class Named(Dataset):
    """Its indices are not numbers."""

    def __getitem__(self, key):
        return {"word": key[0], "number": key[1]}

    def __len__(self):
        return COUNT


class Words:
    def __iter__(self):
        keys = [(f"word {n}", n) for n in torch.randperm(COUNT).tolist()]
        return iter([keys[n : n + 8] for n in range(0, COUNT, 8)])


class Broken:
    def __iter__(self):
        yield [1, 2, 3]
        raise ValueError("no more")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randperm(COUNT))


def own_generator():
    return torch.Generator().manual_seed(torch.initial_seed() % 1000)


PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}  # as is usual, but not for a fork server's children
LOADERS = {
    "shuffle": lambda: DataLoader(NUMBERS, 7, shuffle=True),
    "shuffle with a generator": lambda: DataLoader(NUMBERS, 7, shuffle=True, generator=own_generator()),
    "no last batch": lambda: DataLoader(NUMBERS, 7, shuffle=True, drop_last=True, generator=own_generator()),
    "with replacement": lambda: DataLoader(NUMBERS, 7, sampler=RandomSampler(NUMBERS, True, 33)),
    "a subset": lambda: DataLoader(NUMBERS, 7, sampler=SubsetRandomSampler(range(3, 41))),
    "weights": lambda: DataLoader(NUMBERS, 7, sampler=WeightedRandomSampler([1.0] * COUNT, 30)),
    "processes": lambda: DataLoader(NUMBERS, 7, shuffle=True, **PROCESSES),
    "processes that stay": lambda: DataLoader(NUMBERS, 7, shuffle=True, persistent_workers=True, **PROCESSES),
    "eager": lambda: DataLoader(NUMBERS, 7, sampler=Eager()),
    "lazy": lambda: DataLoader(NUMBERS, batch_sampler=Lazy()),
    "keys": lambda: DataLoader(Named(), batch_sampler=Words()),
    "no automatic batches": lambda: DataLoader(
        NUMBERS, sampler=BatchSampler(RandomSampler(NUMBERS), 7, False), batch_size=None
    ),
    "in order": lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 7, False)),
}


def numbers_of(part):
    if isinstance(part, dict):
        assert [f"word {n}" for n in part["number"].tolist()] == list(part["word"])
        return part["number"].tolist()
    return part[0].tolist()


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def epochs(loader, job, count=2, stop=None):
    """The numbers that this worker was given, batch by batch, and a number that its generators give afterwards."""
    given = []
    for _ in range(count):
        for step, part in enumerate(loader if job is None else gradtide.shard(loader, job=job)):
            counted = job is None or job.share.samples > 0
            given.append(numbers_of(part) if counted else [])
            torch.rand(3)  # as a model might
            if step == stop:
                break
    return given, (torch.rand(1).item(), np.random.rand(), random.random())


def agree(rank, size, name, which, seeds, stop=None):
    multiprocessing.current_process()._config["daemon"] = False  # so that the loader may start processes of its own
    seed_all(seeds[rank])
    with Group.join(name, rank, size, timeout_s=30) as group:
        return epochs(LOADERS[which](), Job.of(group), stop=stop)


def alone(which, seed, stop=None):
    seed_all(seed)
    return epochs(LOADERS[which](), None, stop=stop)


def endless(rank, size, name):
    seed_all(rank)
    with Group.join(name, rank, size, timeout_s=30) as group:
        job = Job.of(group)
        loader = DataLoader(NUMBERS, batch_sampler=Endless())
        return [numbers_of(part) for part, _ in zip(gradtide.shard(loader, job=job), range(20), strict=False)]


# --- training ---


class Digits(Dataset):
    """Fewer samples than a multiple of the batch, as dicts with a word each."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(45, 6, dtype=torch.float64, generator=generator)
        self.y = torch.randn(45, 1, dtype=torch.float64, generator=generator)

    def __getitem__(self, index):
        return {"x": self.x[index], "more": [f"word {index}", self.y[index]]}

    def __len__(self):
        return 45


def train(job, options):
    net = torch.nn.Linear(6, 1).double()
    with torch.no_grad():
        net.weight.fill_(0.1)
    rule = torch.optim.Adam(net.parameters(), lr=0.01)
    model = net if job is None else gradtide.DataParallel(net, rule, job=job, **options)
    loader = DataLoader(Digits(), 11, shuffle=True)
    for _ in range(3):
        for batch in loader if job is None else gradtide.shard(loader, job=job):
            words, y = batch["more"]
            assert len(words) == len(y)
            torch.nn.functional.mse_loss(model(batch["x"]), y).backward()
            if job is None:
                rule.step()
                rule.zero_grad()
            else:
                model.step()
    if job is not None:
        model.close()
    return [p.detach().clone() for p in net.parameters()]


def train_together(rank, size, name, options, store=None):
    torch.manual_seed(5 + rank)
    with Group.join(name, rank, size, timeout_s=30) as group:
        return train(Job.of(group, store), options)


# --- what is refused ---


def _unlike(rank, at=0):
    """A generator of batches that differ on worker `at`."""
    for step in range(3):
        yield torch.full((4,), float(step + 10 * (rank == at))), ["a", "b", "c", "d"]


def _words(rank):
    yield torch.zeros(2), ["a", "b" if rank else "c"]


REFUSED = {
    "a generator": (lambda rank: _unlike(rank, 1), {}, "worker 1 has another first batch than worker 0"),
    "a generator on worker 0": (_unlike, {}, "has another first batch than worker 0|have another first batch"),
    "words": (_words, {}, "another first batch"),
    "no batch at all": (lambda rank: [] if rank else [torch.zeros(2)], {}, "another first batch"),
    "an iterable dataset": (lambda rank: DataLoader(Stream(), 5), {}, "another first batch than worker 0"),
    "a sampler that fails": (
        lambda rank: DataLoader(NUMBERS, batch_sampler=Broken()),
        {},
        "no more",
    ),
}


def refuse(rank, size, name, which):
    seed_all(rank)
    make, options, _ = REFUSED[which]
    with Group.join(name, rank, size, timeout_s=30) as group:
        trained = 0
        try:
            for _ in gradtide.shard(make(rank), job=Job.of(group), **options):
                trained += 1
        except (gradtide.errors.GradtideError, ValueError) as error:
            return str(error), trained
        return "nothing was said", trained


def unchecked(rank, size, name):
    with Group.join(name, rank, size, timeout_s=30) as group:
        return [part.tolist() for part, _ in gradtide.shard(_unlike(rank), check=False, job=Job.of(group))]
