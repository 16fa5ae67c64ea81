"""A user's script, started by `gradtide run`: integer gradients, compressed; and what was given, moved and left, saved.

compressed_script.py FOLDER STEPS COMPRESS (WORKER:CALL)...     who dies gives zeros, so that nothing of it is lost

WORKER:stepN: it dies after so many steps. local3: workers meet every three steps. servers: over the job's servers.
held: when somebody has come, nobody asks who works together before somebody is told to go.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from compressing import SHAPES, Given, residuals, whole_numbers
from compressing_pairs import on_servers

import gradtide
from gradtide.environment import read_environment
from gradtide.sync import current_job
from gradtide.sync import job as job_module
from gradtide.sync.compressed import way
from gradtide.sync.local.smaller import SmallerChanges

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


def noting(smaller, group, share, window):
    """What this worker has changed, as it counts; again, if the meeting is begun again."""
    stepped = torch.cat([flat.clone() for flat in smaller._room.flat]).numpy() * share
    given[window] = np.split(stepped, np.cumsum([int(np.prod(s)) for s in SHAPES])[:-1])
    average(smaller, group, share, window)


def held(job, **asking):
    """After what those who go had left out was handed over."""
    if job.generation == 1:
        print(f"worker {number} would ask", flush=True)
        while not job.elastic.going:
            time.sleep(0.01)
    regroup(job, **asking)


average, regroup = SmallerChanges.average, job_module.Job.regroup
if "held" in deaths:
    job_module.Job.regroup = held
way.GatheredBucket.exchange, SmallerChanges.average = dying, noting
local = next((int(one.removeprefix("local")) for one in deaths if one.startswith("local")), 0)
sync = gradtide.Local(local) if local else gradtide.Servers("bsp") if "servers" in deaths else "auto"
torch.set_num_threads(1)
net = Given(torch.float64)
given, size, taken = {}, 0, 0
model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=1.0), sync, compress=compress)
try:
    for batch in gradtide.shard([torch.full((12,), step) for step in range(int(steps))]):
        if job.size != size:
            size = job.size
            print(f"worker {number} is {job.rank} of {size}", flush=True)
        step = int(batch[0])
        gradients = [g * (not dies) for g in whole_numbers(number, step)]
        if not local:  # again, if its step is taken again
            given[step] = [g.double().numpy().ravel() * job.weight for g in gradients]
        model(gradients).backward()
        model.step()
        taken += 1
        if taken == 3:
            print(f"worker {number} has begun", flush=True)
        if f"{number}:step{taken}" in deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        if "slow" in deaths and not Path(f"{folder}/hurry").exists():
            time.sleep(0.02)  # time to come in, for who is added
    model.meet()
finally:
    whole_of = [sum((g[index] for g in given.values()), np.zeros(int(np.prod(s)))) for index, s in enumerate(SHAPES)]
    np.savez(f"{folder}/given-{number}.npz", *whole_of)
left, moved = residuals(model), [-p.detach().numpy().ravel() for p in net.values]
if "servers" in deaths:
    moved, left = on_servers(model, job.store)
np.savez(f"{folder}/left-{number}.npz", *left)
np.savez(f"{folder}/moved-{number}.npz", *moved)
model.close()
print("done", model.explain(), flush=True)
