"""A user's script, started by `gradtide run`: integer gradients, compressed; and what was given, moved and left, saved.

compressed_script.py FOLDER STEPS COMPRESS (WORKER:CALL)...     who dies gives zeros, so that nothing of it is lost
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from compressing import SHAPES, Given, residuals, whole_numbers

import gradtide
from gradtide.environment import read_environment
from gradtide.sync import current_job
from gradtide.sync.compressed import way

folder, steps, compress, *deaths = sys.argv[1:]
number, job, calls = read_environment().launch.rank, current_job(), 0
dies = any(death.startswith(f"{number}:") for death in deaths)
whole = way.GatheredBucket.exchange


def dying(bucket, now):
    """What it did is there, and its step is not finished."""
    global calls
    calls += 1
    whole(bucket, now)
    if f"{number}:{calls}" in deaths:
        os.kill(os.getpid(), signal.SIGKILL)


way.GatheredBucket.exchange = dying
torch.set_num_threads(1)
net = Given(torch.float64)
model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=1.0), compress=compress)
given, size = {}, 0
try:
    for batch in gradtide.shard([torch.full((12,), step) for step in range(int(steps))]):
        if job.size != size:
            size = job.size
            print(f"worker {number} is {job.rank} of {size}", flush=True)
        step = int(batch[0])
        gradients = [g * (not dies) for g in whole_numbers(number, step)]
        given[step] = [g.double().numpy().ravel() * job.weight for g in gradients]  # again, if its step is taken again
        model(gradients).backward()
        model.step()
        if "slow" in deaths and not Path(f"{folder}/hurry").exists():
            time.sleep(0.02)  # time to come in, for who is added
finally:
    whole_of = [sum((g[index] for g in given.values()), np.zeros(int(np.prod(s)))) for index, s in enumerate(SHAPES)]
    np.savez(f"{folder}/given-{number}.npz", *whole_of)
np.savez(f"{folder}/left-{number}.npz", *residuals(model))
np.savez(f"{folder}/moved-{number}.npz", *[-p.detach().numpy().ravel() for p in net.values])
model.close()
print("done", model.explain(), flush=True)
