"""A user's script, started by `gradtide run`: workers are added when the others are at awkward places.

early_script.py FOLDER STEPS SYNC

Worker 2 comes when the others were given their first batch and nobody has pushed. Worker 3 comes later, and worker 1
hears of it a second after the servers.
"""

import sys
import time

import numpy as np
import torch
from growing import batches, build
from torch.nn import functional

import gradtide
from gradtide.environment import read_environment
from gradtide.store.client.session import Session
from gradtide.store.wire.messages import Decree
from gradtide.sync import current_job

folder, steps, sync = sys.argv[1:]
number, job, hear, first_s = read_environment().launch.rank, current_job(), Session.hear, None


def hear_late(session, message, now_s):
    """A word that is lost comes again, after the next beat."""
    global first_s
    if isinstance(message, Decree) and any(member.worker == 3 for member in message.members):
        first_s = now_s if first_s is None else first_s
        if now_s - first_s < 1:
            return []
    return hear(session, message, now_s)


if number == 1:
    Session.hear = hear_late
torch.set_num_threads(1)
net, rule = build()
model = gradtide.DataParallel(net, rule, gradtide.Servers(sync))
way, cut, awaited = model._synchroniser.way, np.zeros(int(steps) + 1), {1: 3, 10: 4}
for x, y in gradtide.shard(batches(int(steps))):
    cut[job.batches] = job.share.samples
    if job.batches in awaited:
        print(f"worker {number} waits at batch {job.batches}", flush=True)
        while first_s is None and len(way.store.round_members) < awaited[job.batches]:
            time.sleep(0.01)
    functional.mse_loss(model(x), y).backward()
    model.step()
model.close()
np.savez(f"{folder}/{number}.npz", *[p.detach().numpy() for p in net.parameters()], cut=cut)
