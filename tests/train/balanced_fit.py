"""A user's script, started by `gradtide run`: fits with balance, on a clock of its own.

balanced_fit.py FOLDER
"""

import sys

import torch
from torch import nn

import gradtide
from gradtide.events import SharesChanged
from gradtide.parallel import agreed_shares
from gradtide.sync import current_job
from gradtide.sync.watching.stopwatch import Stopwatch

SAMPLES, BATCH = 240, 24
now_s = 0.0
X = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = X.sum(1, keepdim=True).sin()


class Slow(nn.Module):
    """Time passes with every sample, twice as much of it on worker 1."""

    def forward(self, x):
        global now_s
        now_s += len(x) * (1 + current_job().rank)
        return x


def build(*first):
    torch.manual_seed(1)
    return nn.Sequential(*first, nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def fit(net, **options):
    told = []
    settings = {"batch_size": BATCH, "epochs": 3, "loss": "mse", "lr": 0.1, "emit": told.append, **options}
    gradtide.fit(net, (X, Y), **settings)
    changes = [event.samples for event in told if isinstance(event, SharesChanged)]
    return [p.detach().clone() for p in net.parameters()], changes


def main():
    agreed_shares.Stopwatch = lambda: Stopwatch(lambda: now_s)
    found = {devices: fit(build(Slow()), devices=devices, balance=True) for devices in (1, 2)}
    torch.save(found, f"{sys.argv[1]}/found-{current_job().rank}.pt")


if __name__ == "__main__":
    main()
