"""DataLoaders that shuffle, and where torch's generator is afterwards; and a script that goes over them on workers.

drawn_fit.py FOLDER CASE...: what worker 0's generator says, whatever that of the others.
"""

import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import gradtide

RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(37, 5, generator=RANDOM, dtype=torch.float64)
LABELS = torch.randint(0, 3, (37,), generator=RANDOM)
DATA = TensorDataset(X, LABELS)
WEIGHTS = torch.rand(37, generator=RANDOM)


class Augmented(torch.utils.data.Dataset):
    """Draws while it is read, from every generator that there is in the process."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        drawn = 1 + 0.1 * torch.randn((), dtype=torch.float64) + 0.1 * random.random() + 0.1 * np.random.rand()
        return X[index] * drawn, LABELS[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([DATA[int(i)] for i in torch.randperm(len(DATA))])


class FromNumbers(torch.utils.data.Sampler):
    """As many write it: by the epoch that it counts, and by NumPy's and Python's generators of its own."""

    def __init__(self):
        self.epoch, self.numpy, self.python = 0, np.random.default_rng(2), random.Random(4)

    def __len__(self):
        return len(DATA)

    def __iter__(self):
        self.epoch += 1
        for _ in DATA:
            yield int(self.numpy.integers(7) + self.python.randrange(7) * self.epoch) % len(DATA)


class Own(torch.utils.data.Sampler):
    """Draws as it goes, from a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return len(DATA)

    def __iter__(self):
        return (int(torch.randint(len(DATA), (), generator=self.generator)) for _ in DATA)


def generator():
    return torch.Generator().manual_seed(11)


def shared():
    """One generator of training and validation."""
    one = generator()
    return DataLoader(DATA, 9, shuffle=True, generator=one), DataLoader(DATA, 9, shuffle=True, generator=one)


CASES = {  # what makes the training data, or that and the validation data
    "shuffle": lambda: DataLoader(DATA, 9, shuffle=True),
    "drop_last": lambda: DataLoader(DATA, 9, shuffle=True, drop_last=True),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 9, False)),
    "replacement": lambda: DataLoader(DATA, 9, sampler=RandomSampler(DATA, replacement=True, num_samples=50)),
    "weighted": lambda: DataLoader(DATA, 9, sampler=WeightedRandomSampler(WEIGHTS, 40)),
    "subset": lambda: DataLoader(Subset(DATA, range(30)), 9, sampler=SubsetRandomSampler(range(30))),
    "collated": lambda: DataLoader(DATA, 9, shuffle=True, collate_fn=torch.utils.data.default_collate.__call__),
    "stream": lambda: DataLoader(Stream(), 9),
    "augmented": lambda: DataLoader(Augmented(), 9, shuffle=True),
    "processes": lambda: DataLoader(DATA, 9, shuffle=True, num_workers=1),
    "generator": lambda: DataLoader(DATA, 9, shuffle=True, generator=generator()),
    "generator of a sampler": lambda: DataLoader(
        DATA, 9, sampler=WeightedRandomSampler(WEIGHTS, 40, True, generator())
    ),
    "sampler of one's own": lambda: DataLoader(DATA, 9, sampler=Own()),
    "sampler of numbers": lambda: DataLoader(DATA, 9, sampler=FromNumbers()),
    "shared generator": shared,
    "both": lambda: (DataLoader(DATA, 9, shuffle=True), DataLoader(DATA, 5, shuffle=True)),
}
RESUMED = ["shuffle", "augmented", *[case for case in CASES if "gener" in case or "of " in case], "both"]
SEEDED_ALIKE = {"stream", "augmented"}  # what draws after the first batch is the same only where seeds are


def draw(event):
    """A callback that draws on worker 0 alone, as one does who shows some samples."""
    if isinstance(event, gradtide.EpochEnd) and event.is_main:
        torch.rand(3)


def train(case, apart=0, epochs=3, **options):
    """The state after it, and what torch's generator gives then. `apart`: how far this worker's seed is off."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(7 if case in SEEDED_ALIKE else 7 + apart)
    data, validation = made if isinstance(made := CASES[case](), tuple) else (made, DataLoader(DATA, 20))
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter).roll(number))
    gradtide.evaluate(net, data)
    callbacks = [draw] if case not in SEEDED_ALIKE else []
    settings = {"validation": validation, "lr": 0.5, "callbacks": callbacks, "progress": False, **options}
    history = gradtide.fit(net, data, epochs=epochs, **settings)
    return {"state": net.state_dict(), "loss": history.loss, "next": torch.rand(4)}


def main():
    folder, *words = sys.argv[1:]
    options = {"split": "auto"} if words[0] == "split" else {}
    found = {case: train(case, apart=gradtide.rank(), **options) for case in words if case != "split"}
    torch.save(found, f"{folder}/found-{gradtide.rank()}.pt")


if __name__ == "__main__":
    main()
