"""A user's script, started by `gradtide run`: fit, and a death where the test wants it.

dying_fit.py FOLDER (WORKER:EVENT:COUNT)...: the worker dies at its COUNT-th such event; "none" for none.
"""

import os
import signal
import sys
from collections import Counter

import numpy as np
import torch
from torch import nn

import gradtide
from gradtide.environment import read_environment
from gradtide.events import BatchDone
from gradtide.train.digits import load_digits


def train(emit):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    (images, labels), (tests, wanted) = load_digits()
    seen = gradtide.fit(
        model,
        (images.double(), labels),
        test_data=(tests.double(), wanted),
        epochs=3,
        optimizer="Adam",
        lr=0.01,
        emit=emit,
    )
    return [p.detach().numpy() for p in model.parameters()], seen


def main():
    folder, *deaths = sys.argv[1:]
    worker = read_environment().launch.rank
    seen, samples = Counter(), []

    def emit(event):
        if isinstance(event, BatchDone):
            samples.append(event.samples)
        seen[type(event).__name__] += 1
        if f"{worker}:{type(event).__name__}:{seen[type(event).__name__]}" in deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    parameters, history = train(emit)
    np.savez(f"{folder}/{worker}.npz", np.array(history.test_loss), *parameters)
    np.save(f"{folder}/{worker}.samples.npy", np.array(samples))


if __name__ == "__main__":
    main()
