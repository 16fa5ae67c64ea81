"""A user's script, started by `gradtide run`: trains on a job that grows and shrinks, and says how many they are.

growing_script.py FOLDER STEPS SYNC      slowly, until there is a file FOLDER/hurry; later a layer is frozen for a while
"""

import os
import sys
import time

import numpy as np
import torch
from growing import FROZEN, batches, build
from torch.nn import functional

import gradtide
from gradtide.environment import read_environment
from gradtide.sync import current_job

folder, steps, sync = sys.argv[1:]
number, job = read_environment().launch.rank, current_job()
torch.set_num_threads(1)
net, rule = build()
ways = {"servers": gradtide.Servers("bsp"), "local": gradtide.Local(3, over=gradtide.Servers("bsp"))}
model = gradtide.DataParallel(net, rule, ways.get(sync, "auto"))
size = 0
for x, y in gradtide.shard(batches(int(steps))):
    if job.size != size:
        size = job.size
        print(f"worker {number} is {job.rank} of {size} from batch {job.batches} on", flush=True)
    net[0].requires_grad_(job.batches not in FROZEN)  # the way begins anew, for those who came later too
    functional.mse_loss(model(x), y).backward()
    model.step()
    if not os.path.exists(f"{folder}/hurry"):
        time.sleep(0.05)  # time to come in, for who is added
model.close()
np.savez(f"{folder}/{number}.npz", *[p.detach().numpy() for p in net.parameters()])
print(f"worker {number} is done", flush=True)
