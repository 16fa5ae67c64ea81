"""A user's script, started by `gradtide run`: local steps over servers, each worker with batches of its own. It notes
the rounds that it was in, and dies where the test wants it to.

local_rounds_script.py FOLDER STEPS (WORKER:STEP)... [again]     again: goes on until the one that died is in again
"""

import os
import signal
import sys

import local_servers
import numpy as np
import torch
from torch.nn import functional

import gradtide
from gradtide.environment import read_environment
from gradtide.sync import current_job

folder, steps, *deaths = sys.argv[1:]
around, job = read_environment(), current_job()
number = around.launch.rank
player = 100 * around.incarnation + number
torch.set_num_threads(1)
net, rule = local_servers.small_net()
model = gradtide.DataParallel(net, rule, gradtide.Local(3, local_servers.OUTER, over=gradtide.Servers("bsp")))
size, left, step, more = job.size, int(steps), 0, deaths[-1:] == ["again"] and not around.incarnation
while left:
    x, y = local_servers.own_batch(player, step)
    model.weigh(len(x))
    functional.mse_loss(model(x), y).backward()
    step += 1
    if not around.incarnation and f"{number}:{step}" in deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    model.step()
    way = model._synchroniser.way
    if way.apart == 0:
        with open(f"{folder}/rounds-{player}", "a") as file:
            file.write(f"{way._attendance.round}\n")
    left -= 1
    if not left and more:
        left, more = (3, True) if job.size < size else (6, False)
model.close()
np.savez(f"{folder}/{player}.npz", *[p.detach().numpy() for p in net.parameters()])
