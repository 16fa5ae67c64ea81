"""fit with compression and checkpoints, as worker of a job: compressed_resume_script.py FOLDER (whole|resumed).

whole: trained without and with checkpoints, and once more up to a step from which it is resumed.
resumed: goes on from there, on however many workers there are.
"""

import contextlib
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from torch import nn

import gradtide
from gradtide.events import BatchDone
from gradtide.store.local.servers import Forks
from gradtide.sync import current_job
from gradtide.train.together.run import RunTogether

SGD = partial(torch.optim.SGD, lr=0.1)  # without momentum: what is left out is scaled as the rate changes
CASES = {
    "topk": ("auto", "topk:0.1", SGD),
    "onebit": ("auto", "onebit", SGD),
    "int8": ("auto", "int8", "SGD"),
    "powersgd": ("auto", "powersgd:1", "SGD"),
    "local": (gradtide.Local(2), "topk:0.1", "SGD"),
    "local powersgd": (gradtide.Local(2), "powersgd:1", "SGD"),
    "servers int8": ("bsp", "int8", "Adam"),  # the first of them: its lots are drawn by round
    "servers": ("bsp", "topk:0.1", SGD),
    "servers average": ("bsp", "topk:0.1", "Adafactor"),  # which they can't step with
}
SUMMED = ["topk", "powersgd", "local", "servers", "servers average"]
STEPS = 4  # in an epoch
left = {}  # of the run that was loaded last
start = RunTogether.start


def seen_start(run, *arguments):
    start(run, *arguments)
    left.clear()
    left.update(run.sync_state().get("compression", {}))


class Stop(Exception):
    pass


def train(case, sync, checkpoints=None, stop_at=0):
    _, compress, optimizer = CASES[case]
    left.clear()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(8 * STEPS, 6, generator=generator), torch.randint(3, (8 * STEPS,), generator=generator)

    def emit(event):
        if isinstance(event, BatchDone) and event.step == stop_at:
            raise Stop

    options = {"batch_size": 8, "epochs": 2, "sync": sync, "compress": compress, "optimizer": optimizer}
    options |= {"scale_batch": False, "warmup_epochs": 1.75} | ({"lr": 0.1} if isinstance(optimizer, str) else {})
    with contextlib.suppress(Stop):
        gradtide.fit(net, data, checkpoints=checkpoints, emit=emit, **options)
    return net.state_dict()


class Starter:
    """Worker 0 starts servers, and tells the others where."""

    def __init__(self, folder, what, stack):
        self._told, self._stack, self._count = Path(folder) / f"{what} on {current_job().size}", stack, 0
        self._forks = stack.enter_context(Forks()) if current_job().rank == 0 else None

    def start(self, restore=None):
        self._count += 1
        told = self._told.with_suffix(f".{self._count}")
        if current_job().rank == 0:
            servers = gradtide.local_servers(1 if restore else 2, restore=restore, forks=self._forks)
            new = told.with_suffix(".new")
            new.write_text(self._stack.enter_context(servers).address)
            new.rename(told)
        while not told.exists():
            time.sleep(0.01)
        return told.read_text()


def over(case, address, name=""):
    """What fit takes as sync."""
    sync = CASES[case][0]
    return gradtide.Servers(sync, address, name=name) if sync == "bsp" else sync


def wait_for_all():
    if (group := current_job().group) is not None:
        group.barrier()


def train_whole(found, folder, starter):
    plain, kept = starter.start(), starter.start()
    for case in CASES:
        found[f"{case} plain"] = train(case, over(case, plain, case))
        train(case, over(case, kept, case), gradtide.Checkpoints(f"{folder}/{case}", every=2), stop_at=7)
        wait_for_all()  # all see the same newest one


def main(folder, what):
    RunTogether.start = seen_start
    found, rank = {}, current_job().rank
    with contextlib.ExitStack() as stack, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        starter = Starter(folder, what, stack)
        if what == "whole":
            train_whole(found, folder, starter)
        for case in CASES if what == "whole" else SUMMED:
            place = f"{folder}/{case}"
            address = starter.start(place) if CASES[case][0] == "bsp" else ""
            found[case] = train(case, over(case, address, case), gradtide.Checkpoints(place, resume=True))
            found[f"{case} left"] = dict(left)
        wait_for_all()
    found["said"] = [str(one.message) for one in said]
    torch.save(found, f"{folder}/{what}-{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
