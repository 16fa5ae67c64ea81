"""A user's script, started by `gradtide run`: fits data of which each worker reads its part, and notes what it reads.

parts_fit.py FOLDER [CASE]...: "dies" kills worker 1 in the middle of an epoch, in every case.
"""

import os
import signal
import sys
from contextlib import suppress

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gradtide
from gradtide.events import BatchDone
from gradtide.sync import current_job

SAMPLES, BATCH, IGNORED = 45, 7, -100


class Noted(Dataset):
    """Samples by index, whose reads are noted in this process."""

    def __init__(self, draws=False, ignored=()):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
        self.y = torch.randint(3, (SAMPLES,), generator=generator)
        self.y[list(ignored)] = IGNORED
        self.reads, self._draws = [], draws

    def __getitem__(self, index):
        self.reads.append(int(index))
        noise = torch.rand(5, dtype=torch.float64) if self._draws else 0.0
        return self.x[index] + noise, self.y[index]

    def __len__(self):
        return SAMPLES


def in_order(data, **more):
    return DataLoader(data, BATCH, **more)


def shuffled(data):
    return DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(2))


PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
CASES = {  # the data, what is made of it for fit, and fit's options
    "a dataset": (Noted, lambda data: data, {}),
    "accumulated": (Noted, shuffled, {"accumulate": 3}),
    # Worker 0's part of the first batch has nothing to learn from.
    "ignored targets": (lambda: Noted(ignored=range(3)), in_order, {}),
    "processes": (Noted, lambda data: in_order(data, **PROCESSES), {}),
    "a dataset that draws": (lambda: Noted(draws=True), in_order, {"epochs": 1}),
}


class Stop(Exception):
    pass


def train(case, emit=lambda event: None, **more):
    """The parameters, and what was read of the data."""
    make, loaded, options = CASES[case]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    data = make()
    settings = {"batch_size": BATCH, "epochs": 2, "lr": 0.1, "optimizer": "Adam", "emit": emit, **options, **more}
    with suppress(Stop):
        gradtide.fit(net, loaded(data), **settings)
    return [p.detach().clone() for p in net.parameters()], data.reads


def stopping(step):
    def emit(event):
        if isinstance(event, BatchDone) and event.step == step:
            raise Stop

    return emit


def resumed(folder, case):
    """The same, stopped in the second epoch and begun again from a checkpoint in the middle of it."""
    kept = gradtide.Checkpoints(f"{folder}/{case}", every=3)
    train(case, stopping(11), checkpoints=kept)
    return train(case, checkpoints=gradtide.Checkpoints(f"{folder}/{case}", every=3, resume=True))


def dying(event):
    if isinstance(event, BatchDone) and event.step == 9 and current_job().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    folder, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    if cases == ["dies"]:
        found = {"dies": train("a dataset", dying)}
    else:
        found = {case: train(case) for case in cases}
        found |= {f"{case}, resumed": resumed(folder, case) for case in ("a dataset", "processes") if case in cases}
    torch.save(found, f"{folder}/found-{current_job().rank}.pt")


if __name__ == "__main__":
    main()
