"""fit with compression and checkpoints, as worker of a job: compressed_resume_script.py FOLDER (whole|resumed).

whole: trained without and with checkpoints, and once more up to a step from which it is resumed.
resumed: the one with local steps goes on, on however many workers there are.
"""

import contextlib
import sys
import warnings

import torch
from torch import nn

import gradtide
from gradtide.events import BatchDone
from gradtide.sync import current_job
from gradtide.train.together.run import RunTogether

CASES = {
    "topk": ("auto", "topk:0.1"),
    "int8": ("auto", "int8"),
    "powersgd": ("auto", "powersgd:1"),
    "local": (gradtide.Local(2), "topk:0.1"),
    "local powersgd": (gradtide.Local(2), "powersgd:1"),
}
STEPS = 4  # in an epoch
left = {}  # of the run that was loaded last
start = RunTogether.start


def seen_start(run, *arguments):
    start(run, *arguments)
    left.clear()
    left.update(run.sync_state().get("compression", {}))


class Stop(Exception):
    pass


def train(case, checkpoints=None, stop_at=0):
    sync, compress = CASES[case]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(8 * STEPS, 6, generator=generator), torch.randint(3, (8 * STEPS,), generator=generator)

    def emit(event):
        if isinstance(event, BatchDone) and event.step == stop_at:
            raise Stop

    options = {"lr": 0.1, "batch_size": 8, "epochs": 2, "sync": sync, "compress": compress}
    options |= {"scale_batch": False, "warmup_epochs": 0.0}
    with contextlib.suppress(Stop):
        gradtide.fit(net, data, checkpoints=checkpoints, emit=emit, **options)
    return net.state_dict()


def main(folder, what):
    RunTogether.start = seen_start
    found, rank, group = {}, current_job().rank, current_job().group
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for case in CASES if what == "whole" else ["local"]:
            place = f"{folder}/{case}"
            if what == "whole":
                found[f"{case} plain"] = train(case)
                train(case, gradtide.Checkpoints(place, every=2), stop_at=7)
                group.barrier()  # all see the same newest one
            found[case] = train(case, gradtide.Checkpoints(place, resume=True))
            found[f"{case} left"] = dict(left)
    found["said"] = [str(one.message) for one in said]
    torch.save(found, f"{folder}/{what}-{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
