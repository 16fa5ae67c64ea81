"""A user's script with a schedule by epochs, started by `gradtide run`: a worker dies and is started again.

epochs_script.py FOLDER SYNC RESUMES VICTIM      RESUMES: whether it goes on with model.epoch and model.state
"""

import os
import signal
import sys
import warnings

import numpy as np
import torch
import training
from torch.nn import functional

import gradtide
from gradtide.environment import read_environment

EPOCHS, STEPS = 4, 5


def build():
    net = training.simple_model()
    rule = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
    return net, rule, torch.optim.lr_scheduler.ExponentialLR(rule, 0.5)


def main(folder, sync, resumes, victim):
    around, done = read_environment(), 0
    warnings.simplefilter("error" if resumes == "resumes" else "ignore")
    torch.set_num_threads(1)
    net, rule, scheduler = build()
    sync = gradtide.Servers("bsp") if sync == "servers" else "auto"
    model = gradtide.DataParallel(net, rule, sync)
    if "scheduler" in model.state and resumes == "resumes":
        scheduler.load_state_dict(model.state["scheduler"])
    for epoch in range(model.epoch if resumes == "resumes" else 0, EPOCHS):
        for x, y in gradtide.shard(list(training.batches(torch.float64, STEPS))):
            functional.cross_entropy(model(x), y).backward()
            done += 1
            if around.launch.rank == int(victim) and not around.incarnation and done == 2 * STEPS + 3:
                os.kill(os.getpid(), signal.SIGKILL)
            model.step()
        scheduler.step()
        if resumes == "resumes":
            model.state["scheduler"] = scheduler.state_dict()
            model.epoch = epoch + 1
    model.close()
    np.savez(f"{folder}/{around.launch.rank}.npz", *[p.detach().numpy() for p in net.parameters()])


if __name__ == "__main__":
    main(*sys.argv[1:])
