"""A user's script on several machines: trains, says when each step was and with how many, and saves its parameters.

nodes_script.py FOLDER STEPS      slowly, until there is a file FOLDER/hurry
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

BATCH = 24


def build():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5)).double()
    return net, torch.optim.Adam(net.parameters(), 0.01)


def batches(steps):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x = torch.randn(BATCH, 12, generator=generator, dtype=torch.float64)
        yield x, torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)


def main(folder, steps):
    number, job = read_environment().launch.rank, current_job()
    torch.set_num_threads(1)
    net, rule = build()
    model = gradtide.DataParallel(net, rule)
    for x, y in gradtide.shard(list(batches(int(steps)))):
        functional.mse_loss(model(x), y).backward()
        model.step()
        print(f"step {job.batches} of {job.size} at {time.monotonic():.3f}", flush=True)
        if not os.path.exists(f"{folder}/hurry"):
            time.sleep(0.05)
    model.close()
    np.savez(f"{folder}/{number}.npz", *[p.detach().numpy() for p in net.parameters()])
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
