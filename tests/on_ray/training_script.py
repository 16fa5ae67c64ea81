"""A user's script on Ray's nodes: trains, writes down what every step was made of, and saves its parameters.

training_script.py FOLDER STEPS group|servers     slowly, until there is a file FOLDER/hurry
"""

import os
import sys
import time

import numpy as np
import torch
from torch.nn import functional

import gradtide
from gradtide.environment import read_environment
from gradtide.sync import current_job

BATCH, RATE = 24, 0.05
UNHURRIED = 80  # steps from which on it only waits for whoever is to come, on a machine that may be busy


def build():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Tanh(), torch.nn.Linear(10, 5)).double()
    return net, torch.optim.SGD(net.parameters(), RATE, momentum=0.5)


def batches(steps):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x = torch.randn(BATCH, 12, generator=generator, dtype=torch.float64)
        yield x, torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)


def note(path, **values):
    """There whole or not at all, and before anybody else hears of it."""
    with open(f"{path}.new", "wb") as file:
        np.savez(file, **values)
    os.replace(f"{path}.new", f"{path}.npz")


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()


def main(folder, steps, how):
    number, job = read_environment().launch.rank, current_job()
    torch.set_num_threads(1)
    net, rule = build()
    model = gradtide.DataParallel(net, rule, gradtide.Servers("bsp") if how == "servers" else "auto")
    for x, y in gradtide.shard(list(batches(int(steps)))):
        loss = functional.mse_loss(model(x), y)
        if how == "servers":
            own = torch.autograd.grad(functional.mse_loss(net(x), y), list(net.parameters()))
            weight = job.share.samples / job.share.of
            note(f"{folder}/{job.batches}-{number}", before=flat(net.parameters()), gradient=flat(own), weight=weight)
        loss.backward()
        model.step()
        print(f"step {job.batches} of {job.size} at {time.monotonic():.3f}", flush=True)
        if not os.path.exists(f"{folder}/hurry"):
            time.sleep(0.05 if job.batches < UNHURRIED else 0.25)
    model.close()
    note(f"{folder}/last-{number}", before=flat(net.parameters()))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
