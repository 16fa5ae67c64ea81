"""A user's script, started by `gradtide run`: fit, and a death where the test wants it.

dying_fit.py FOLDER (WORKER:EVENT:COUNT)...: the worker dies at its COUNT-th such event; "none" for none; "wait": who is
left alone waits for one that is started again.
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
from gradtide.processes.ready import can_read
from gradtide.sync import current_job
from gradtide.train.digits import load_digits


def train(emit, callbacks=()):
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
        callbacks=callbacks,
    )
    return [p.detach().numpy() for p in model.parameters()], seen


def wait_for_newcomer():
    """Until the launcher tells that the worker which died is there again; it is let in after the next step."""
    can_read([current_job().elastic._line()._launcher], 120)


def main():
    folder, *deaths = sys.argv[1:]
    worker = read_environment().launch.rank
    seen, samples = Counter(), []

    def emit(event):
        if isinstance(event, BatchDone):
            samples.append(event.samples)
        seen[type(event).__name__] += 1
        death = f"{worker}:{type(event).__name__}:{seen[type(event).__name__]}"
        if death in deaths and read_environment().incarnation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if "wait" in deaths and isinstance(event, BatchDone) and current_job().size == 1:
            deaths.remove("wait")
            wait_for_newcomer()

    torch.set_num_threads(1)
    keeping = gradtide.CSVLog(f"{folder}/log.csv"), gradtide.BestModel(f"{folder}/best.safetensors", restore=True)
    parameters, history = train(emit, keeping)
    np.savez(f"{folder}/{worker}.npz", np.array(history.test_loss), *parameters)
    np.save(f"{folder}/{worker}.samples.npy", np.array(samples))


if __name__ == "__main__":
    main()
