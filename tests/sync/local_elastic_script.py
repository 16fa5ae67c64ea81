"""A user's script, started by `gradtide run`: local steps, saved in the end; it dies where the test wants it to.

local_elastic_script.py FOLDER EPOCHS EVERY AFTER (list|loader) (WORKER:INCARNATION:PLACE)...

Places: `step3` after the third step of its own; `look2` in the job's second meeting, before workers compare what they
began with, and `looked2` after it; `meet2.1` before the first all-reduce; `left2@1,2` when that meeting has ended for
it and for workers 1 and 2; `lost-left2`: it lives, but takes it that a peer died when that meeting had ended;
`edit-step3`: it lives, but changes a parameter that no optimizer has. It trains slowly while there is a file
FOLDER/slowly.
"""

import os
import signal
import sys
import time
from pathlib import Path

import local_elastic
import numpy as np
import torch
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.environment import read_environment
from gradtide.errors import PeerLost
from gradtide.sync import current_job
from gradtide.sync.local import LocalSteps, way

folder, epochs, every, after, source, *places = sys.argv[1:]
around = read_environment()
me = f"{around.launch.rank}:{around.incarnation}:"
meetings = operations = steps = 0


def come_to(place):
    Path(folder, f"{place}.{around.launch.rank}").touch()
    for chosen, _, others in (found.partition("@") for found in places):
        if chosen == f"{me}{place}":
            wait_for(*(f"{place}.{other}" for other in others.split(",") if other))
            os.kill(os.getpid(), signal.SIGKILL)
        if chosen == f"{me}lost-{place}":
            places.remove(chosen)
            raise PeerLost("as if it had died a moment earlier")
        if chosen == f"{me}edit-{place}":
            net.beside.data += 1


def wait_for(*names):
    deadline = time.monotonic() + 60
    while not all(Path(folder, name).exists() for name in names):
        assert time.monotonic() < deadline, names
        time.sleep(0.005)


meet, all_reduce, barrier = LocalSteps.meet, Group.all_reduce, Group.barrier
look = way.look_whether_alike


def counted_meet(way):
    global meetings, operations
    meetings, operations = way._known.windows + 1, 0
    meet(way)


def counted_all_reduce(group, *arguments, **named):
    global operations
    operations += 1
    come_to(f"meet{meetings}.{operations}")
    return all_reduce(group, *arguments, **named)


def told_barrier(group, *arguments, **named):
    barrier(group, *arguments, **named)
    come_to(f"left{meetings}")


def told_look(*arguments, **named):
    come_to(f"look{meetings}")
    look(*arguments, **named)
    come_to(f"looked{meetings}")


LocalSteps.meet, Group.all_reduce, Group.barrier = counted_meet, counted_all_reduce, told_barrier
way.look_whether_alike = told_look
torch.set_num_threads(1)
net, rule = local_elastic.build(normed=after == "0")
net.register_parameter("beside", torch.nn.Parameter(torch.zeros(1)))
job = current_job()
model = gradtide.DataParallel(net, rule, gradtide.Local(int(every), local_elastic.OUTER, after=int(after)))
size = job.size
if job.behind:
    print(f"worker {around.launch.rank} comes after batch {job.behind}", flush=True)
for _epoch in range(int(epochs)):
    data = list(local_elastic.batches()) if source == "list" else local_elastic.loader()
    for x, y in gradtide.shard(data):
        if job.size != size:
            size = job.size
            print(f"worker {around.launch.rank} is one of {size} after batch {job.batches - 1}", flush=True)
        functional.mse_loss(model(x), y).backward()
        model.step()
        steps += 1
        if steps == 1:
            print(f"worker {around.launch.rank} has begun", flush=True)
        come_to(f"step{steps}")
        if os.path.exists(f"{folder}/slowly"):
            time.sleep(0.02)  # time to come in, for who is added
print(f"worker {around.launch.rank} closes", flush=True)
model.close()
np.savez(f"{folder}/{around.launch.rank}.npz", *[p.detach().numpy() for p in rule.param_groups[0]["params"]])
print(f"worker {around.launch.rank} is done", flush=True)
