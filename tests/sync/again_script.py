"""A user's script, started by `gradtide run`: a loop in which something besides the model counts, and workers that die.

again_script.py FOLDER PROGRAM WAY LOADER (WORKER:INCARNATION:MOMENT)... (SIZE@WORKER:INCARNATION:MOMENT)...

A moment is "wrapped" (the model is, and no batch was given yet), or what is begun for the how manyth time: "forward 3",
"step 3" (in the middle of it) or "end 3"; in edited_programs.py also "edit 3", "evaluate 3" and "saved 3".
"begins 2": all begin alike for the second time, as those who are left, or who have come. With a size, the worker has
the job scaled then; who is added has started, and is about to wrap ("started"), before it goes on, and from there on
batches take their time.
"""

import copy
import os
import signal
import sys
import time
import weakref
from contextlib import nullcontext

import edited_programs
import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.environment import read_environment
from gradtide.processes.job_protocol import scale
from gradtide.sync import choose

EPOCHS, SAMPLES, BATCH, BATCHES = 2, 62, 10, 7


class Counting(nn.Module):
    """Knows how often it was called."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return x * (1 + 0.01 * self.calls)


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Counting(), nn.Linear(16, 4)).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)


def data(kind):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, 8, dtype=torch.float64, generator=draw), torch.randint(4, (SAMPLES,), generator=draw)
    if kind == "list":
        return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, SAMPLES, BATCH)]
    return DataLoader(TensorDataset(x, y), BATCH)


def every(model, rule, loader, moment):
    """One step a batch."""
    for x, y in loader:
        moment("forward")
        functional.cross_entropy(model(x), y).backward()
        moment("step")
        model.step()
        moment("end")


def own_counter(model, rule, loader, moment):
    """Accumulates three batches, by the loop's own counter."""
    for i, (x, y) in enumerate(loader):
        accumulate(model, i % 3 == 2 or i == BATCHES - 1, x, y, moment)


def by_place(model, rule, loader, moment):
    """The same, by what shard says."""
    for x, y in loader:
        accumulate(model, loader.place % 3 == 2 or loader.place + 1 == len(loader), x, y, moment)


def carries_over(model, rule, loader, moment):
    """Leaves the gradient of an epoch's last batch to the next epoch."""
    for x, y in loader:
        accumulate(model, loader.place % 3 == 2, x, y, moment)


def edits_within(model, rule, loader, moment):
    """Edits parameters when a step has one of its batches."""
    for x, y in loader:
        accumulate(model, loader.place % 3 == 2 or loader.place + 1 == len(loader), x, y, moment)
        if loader.place == 3:
            with model.edit(), torch.no_grad():
                for p in rule.param_groups[0]["params"]:
                    p.mul_(0.9)


def apart(model, rule, loader, moment):
    """Worker 1 takes other batches for the last one of a step."""
    for x, y in loader:
        accumulate(model, (loader.place + read_environment().launch.rank) % 3 == 2, x, y, moment)


def scheduled(model, rule, loader, moment, when="after"):
    """A schedule by steps, kept in model.state."""
    scheduler = torch.optim.lr_scheduler.OneCycleLR(rule, max_lr=0.3, total_steps=EPOCHS * BATCHES + 4)
    if "scheduler" in model.state:
        scheduler.load_state_dict(model.state["scheduler"])
        rule.param_groups[0].update(model.state["options"])
    for x, y in loader:
        moment("forward")
        functional.cross_entropy(model(x), y).backward()
        if when == "before":
            scheduler.step()
        moment("step")
        model.step()
        moment("end")
        if when == "after":
            scheduler.step()
        model.state["steps"] = model.state.get("steps", 0) + 1
        model.state["scheduler"] = scheduler.state_dict()
        model.state["options"] = {name: rule.param_groups[0][name] for name in ("lr", "momentum")}
    assert model.state["steps"] % BATCHES == 0


def scheduled_before(model, rule, loader, moment):
    scheduled(model, rule, loader, moment, when="before")


def scheduled_by_hand(model, rule, loader, moment):
    """A function of its own sets the rate, by a counter that nobody knows of."""
    for count, (x, y) in enumerate(loader):
        rule.param_groups[0]["lr"] = 0.1 / (1 + count)
        moment("forward")
        functional.cross_entropy(model(x), y).backward()
        moment("step")
        model.step()


def edited(model, rule, loader, moment):
    """Trains as others do; at the end each worker edits its parameters."""
    every(model, rule, loader, moment)


def joined(model, rule, loader, moment):
    """Each worker has batches of its own."""
    with model.join():
        every(model, rule, data("list"), moment)


def two_steps(model, rule, loader, moment):
    """Two steps with each batch."""
    for x, y in loader:
        for _ in range(2):
            moment("forward")
            functional.cross_entropy(model(x), y).backward()
            moment("step")
            model.step()


def accumulate(model, last, x, y, moment):
    moment("forward")
    loss = functional.cross_entropy(model(x), y) / 3
    with nullcontext() if last else model.no_sync():
        loss.backward()
    moment("backward")
    if last:
        moment("step")
        model.step()
    moment("end")


PROGRAMS = {
    program.__name__: program
    for program in (
        every,
        own_counter,
        by_place,
        carries_over,
        edits_within,
        apart,
        two_steps,
        scheduled,
        scheduled_before,
        scheduled_by_hand,
        edited,
        joined,
        *edited_programs.PROGRAMS,
    )
}


class Plain:
    """What stands for the wrapper in one process."""

    def __init__(self, net, rule):
        self.net, self.rule, self.state, self.saved = net, rule, {}, []

    def __call__(self, x):
        return self.net(x)

    def __getattr__(self, name):
        return getattr(self.net, name)

    def no_sync(self):
        return nullcontext()

    edit = no_sync

    def cut(self, loader):
        return loader

    def save(self, rule, place):
        self.saved.append(copy.deepcopy((self.net.state_dict(), rule.state_dict())))

    def step(self):
        self.rule.step()
        self.rule.zero_grad()


class Places(list):
    """What stands for `shard`."""

    def __iter__(self):
        for self.place, batch in enumerate(super().__iter__()):
            yield batch


def alone(program):
    return [p.detach().numpy() for p in in_one_process(program).net.parameters()]


def in_one_process(program):
    model = Plain(*build())
    for _ in range(EPOCHS):
        PROGRAMS[program](model, model.rule, Places(data("list")), lambda _: None)
    return model


class Saving(gradtide.DataParallel):
    """Whose loops evaluate and save."""

    def cut(self, loader):
        return gradtide.shard(loader)

    def save(self, rule, place):
        path = f"{sys.argv[1]}/{BATCHES * self.epoch + place}"
        torch.save((self.state_dict(), rule.state_dict()), f"{path}.new")
        os.rename(f"{path}.new", f"{path}.pt")


def scaled(folder, around, size):
    open(f"{folder}/scaled", "w").close()
    scale(around.launch.job, size)
    while not all(os.path.exists(f"{folder}/started {rank}") for rank in range(size)):
        time.sleep(0.01)


def main(folder, program, way, loader, *deaths):
    around, counts = read_environment(), {}
    torch.set_num_threads(1)

    def moment(name):
        counts[name] = counts.get(name, 0) + 1
        if f"{name} {counts[name]}" in sizes:
            scaled(folder, around, sizes[f"{name} {counts[name]}"])
        if name == "end" and os.path.exists(f"{folder}/scaled"):
            time.sleep(0.03)
        if {f"{name} {counts[name]}", name} & mine:
            os.kill(os.getpid(), signal.SIGKILL)

    me = f"{around.launch.rank}:{around.incarnation}:"
    mine = {death.removeprefix(me) for death in deaths if death.startswith(me)}
    sizes = {at.removeprefix(me): int(size) for size, _, at in (d.partition("@") for d in deaths) if at.startswith(me)}

    def beginning(*arguments, **named):
        moment("begins")
        return begin_alike(*arguments, **named)

    begin_alike, choose._begin_alike = choose._begin_alike, beginning
    open(f"{folder}/started {around.launch.rank}", "w").close()
    moment("started")
    net, rule = build()
    gone = weakref.proxy(nn.Linear(1, 1))  # what programs keep, too: it may not be asked anything any more
    sync = gradtide.Servers("bsp") if way == "servers" else "auto"
    model = Saving(net, rule, sync, share_parameters={"copies": False, "shared": True}.get(way))
    moment("wrapped")
    for epoch in range(model.epoch, EPOCHS):
        PROGRAMS[program](model, rule, gradtide.shard(data(loader)), moment)
        model.epoch = epoch + 1
    moment("close")
    if program == "edited":
        net[0].weight.data[0, 0] += 0.1 * around.launch.rank
    model.close()
    np.savez(f"{folder}/{around.launch.rank}.npz", *[p.detach().numpy() for p in net.parameters()])
    print("done", model.explain(), type(gone).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
