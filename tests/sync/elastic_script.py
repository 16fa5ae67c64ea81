"""A user's script, started by `gradtide run`: trains, saves its parameters, and dies where the test wants it to.

elastic_script.py FOLDER STEPS OPTIMIZER SHARE (WORKER:INCARNATION:CALL)...
"""

import os
import signal
import sys

import numpy as np
import torch
import training
from torch.nn import functional

import gradtide
from gradtide.environment import read_environment
from gradtide.parallel import agreed_shares
from gradtide.sync import reduce, servers
from gradtide.sync.shared import pieces
from gradtide.sync.shared import way as shared
from gradtide.sync.watching.stopwatch import Stopwatch

folder, steps, optimizer, share, *deaths = sys.argv[1:]
around = read_environment()
me = f"{around.launch.rank}:{around.incarnation}:"
calls = 0
now_s = 0.0  # by which a balanced worker is measured: its number says how slow it is
agreed_shares.Stopwatch = lambda: Stopwatch(lambda: now_s)


def dying(method):
    """Counts the calls of something in the middle of a step; the chosen one is the last."""

    def counted(*arguments, **named):
        global calls
        calls += 1
        if f"{me}{calls}" in deaths:
            method(*arguments, **named)  # what it did is there, and its step is not finished
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **named)

    return counted


shared.PIECE_ELEMENTS = pieces.PIECE_ELEMENTS = 1 << 14  # several pieces a step
pieces.Stepper.step = dying(pieces.Stepper.step)
reduce.Reduce._leave = dying(reduce.Reduce._leave)
servers.ServersWay._push = dying(servers.ServersWay._push)
torch.set_num_threads(1)
net = training.build("mlp", torch.float64)
rule = training.OPTIMIZERS[optimizer](net.parameters(), 0.05)
sync = gradtide.Servers("bsp") if share.endswith("servers") else "auto"
model = gradtide.DataParallel(net, rule, sync, share_parameters=False if share == "copies" else None)
aliases = list(net.state_dict().values())  # of the model's own memory, across steps, deaths and new workers


def check_aliases():
    for number, alias in enumerate(aliases):
        assert torch.equal(alias, list(net.parameters())[number % 4]), f"{tuple(alias.shape)} does not follow"


for _epoch in range(2):
    batches = list(training.batches(torch.float64, int(steps)))
    for x, y in gradtide.shard(batches, balance=share.startswith("balanced")):
        now_s += len(x) * (1 + around.launch.rank)
        functional.cross_entropy(model(x), y).backward()
        model.step()
    aliases += [p.detach() for p in net.parameters()]
check_aliases()
model.close()
check_aliases()
np.savez(f"{folder}/{around.launch.rank}.npz", *[p.detach().numpy() for p in net.parameters()])
print("done", model.explain(), flush=True)
