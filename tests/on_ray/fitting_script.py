"""A user's script on Ray's nodes that keeps checkpoints and goes on with the newest, by gradtide.fit.

fitting_script.py FOLDER group|servers     slowly, until there is a file FOLDER/hurry
"""

import os
import sys
import time

import numpy as np
import torch

import gradtide
from gradtide.environment import read_environment

STEPS = 200


def train(sync, checkpoints=None, emit=lambda event: None):
    """The parameters after 200 steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    inputs = torch.randn(400, 20, dtype=torch.float64)
    gradtide.fit(
        model, (inputs, inputs.sum(1, keepdim=True)), loss="mse", optimizer="Adam", lr=0.01, batch_size=40,
        epochs=STEPS // 10, sync=sync, seed=3, checkpoints=checkpoints, emit=emit,
    )  # fmt: skip
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()


def main(folder, how):
    def tell(event):
        if isinstance(event, gradtide.events.BatchDone):
            print(f"step {event.step}", flush=True)
            time.sleep(0 if os.path.exists(f"{folder}/hurry") else 0.05)

    sync = gradtide.Servers("bsp") if how == "servers" else "auto"
    found = train(sync, gradtide.Checkpoints(f"{folder}/ck", every=10, resume=True), tell)
    np.save(f"{folder}/last-{read_environment().launch.rank}.npy", found)


if __name__ == "__main__":
    main(*sys.argv[1:])
