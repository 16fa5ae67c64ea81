"""fit with local steps and checkpoints, as worker of a job: local_resume_script.py FOLDER (whole|resumed).

whole: trained without and with checkpoints, and once more up to the middle of a window, whence it is resumed.
resumed: goes on from the end of the one with checkpoints, on however many workers there are.
"""

import contextlib
import sys
import warnings

import torch
from torch import nn

import gradtide
from gradtide.events import BatchDone
from gradtide.sync import current_job

OUTER = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)
STEPS = 6  # in an epoch


class Stop(Exception):
    pass


def train(checkpoints=None, stop_at=0):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(9 * STEPS, 6, generator=generator), torch.randint(3, (9 * STEPS,), generator=generator)
    made, losses = [], {}

    def optimizer(parameters):
        made.append(torch.optim.AdamW(parameters, lr=0.02))
        return made[-1]

    def emit(event):
        if isinstance(event, BatchDone):
            losses[event.step] = event.loss
            if event.step == stop_at:
                raise Stop

    options = {"batch_size": 9, "epochs": 2, "optimizer": optimizer, "sync": gradtide.Local(2, OUTER, after=2)}
    history = None
    with contextlib.suppress(Stop):
        history = gradtide.fit(net, data, test_data=data, checkpoints=checkpoints, emit=emit, **options)
    state = made[0].state_dict()["state"] if made else None
    seen = None if history is None else (history.loss, history.test_loss)
    return {"values": net.state_dict(), "losses": losses, "seen": seen, "inner": state}


def main(folder, what):
    found, rank = {}, current_job().rank
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if what == "whole":
            found["plain"] = train()
            found["kept"] = train(gradtide.Checkpoints(f"{folder}/kept", every=3))
            train(gradtide.Checkpoints(f"{folder}/stopped", every=3), stop_at=11)
            current_job().group.barrier()  # all see the same newest one
        found["resumed"] = train(
            gradtide.Checkpoints(f"{folder}/{'stopped' if what == 'whole' else 'kept'}", resume=True)
        )
    found["said"] = [str(one.message) for one in said]
    torch.save(found, f"{folder}/{what}-{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
