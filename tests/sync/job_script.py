"""A user's script, started by `gradtide run`: a program that is plain data, whose workers die, come and go as it says.

    job_script.py FOLDER CASE

    {"way": "shared", "program": {"optimizer": "adam", "accumulates": 2, "schedule": "step", "evaluates": true},
     "deaths": ["1:0:backward 3", "1:1:wrapped"], "scale": ["0:0:end 2:3"]}

A death is WORKER:INCARNATION:MOMENT; `scale` asks for so many workers at a moment. Moments are "before" and "wrapped"
(around DataParallel), and what is come to for the how manyth time: forward, loss (after it, before backward), backward
(after it), step (before it), inside (a step), end (of a batch), evaluate, save, edit, epoch (its end), close.
"""

import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from again_script import Counting
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.environment import read_environment
from gradtide.processes.job_protocol import scale

EPOCHS, SAMPLES, BATCH, BATCHES = 2, 62, 10, 7
COMES_S = 60.0

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
}
PER_STEP, PER_EPOCH = ("OneCycleLR", "LambdaLR"), ("StepLR", "CosineAnnealingLR")
SCHEDULES = {
    "OneCycleLR": lambda rule, steps: torch.optim.lr_scheduler.OneCycleLR(rule, max_lr=0.05, total_steps=steps + 4),
    "LambdaLR": lambda rule, steps: torch.optim.lr_scheduler.LambdaLR(rule, lambda step: 0.95**step),
    "StepLR": lambda rule, steps: torch.optim.lr_scheduler.StepLR(rule, 1, 0.5),
    "CosineAnnealingLR": lambda rule, steps: torch.optim.lr_scheduler.CosineAnnealingLR(rule, EPOCHS),
}
KEPT = ("lr", "momentum", "betas")  # of a group, set by its schedule


def build(program):
    torch.manual_seed(0)
    counting = [Counting()] if program.get("buffer") else []
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *counting, nn.Linear(16, 4)).double()
    return net, OPTIMIZERS[program["optimizer"]](net.parameters())


def data(kind="list"):
    """Batches of samples, targets and the samples' numbers."""
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, 8, dtype=torch.float64, generator=draw), torch.randint(4, (SAMPLES,), generator=draw)
    numbers = torch.arange(SAMPLES)
    if kind == "list":
        return [(x[i : i + BATCH], y[i : i + BATCH], numbers[i : i + BATCH]) for i in range(0, SAMPLES, BATCH)]
    shuffled = {"shuffle": True, "generator": torch.Generator().manual_seed(7)} if kind == "shuffled" else {}
    return DataLoader(TensorDataset(x, y, numbers), BATCH, **shuffled)


class Run:
    """One run of a program: in one process without gradtide, or as one of several workers."""

    def __init__(self, program, model, rule, shard, moment=lambda name: None, note=None, keep=None):
        self.program, self.model, self.rule, self.shard = program, model, rule, shard
        self.moment, self.note, self.keep = moment, note, keep
        self.schedule, kind = None, program.get("schedule")
        if kind:
            self.schedule = SCHEDULES[kind](rule, EPOCHS * -(-BATCHES // program.get("accumulates", 1)))
            if "schedule" in model.state:
                self.schedule.load_state_dict(model.state["schedule"])
                for group, options in zip(rule.param_groups, model.state["options"], strict=True):
                    group.update(options)

    def run(self):
        loader = data(self.program.get("loader", "list"))
        for epoch in range(self.model.epoch, EPOCHS):
            batches = self.shard(loader)
            for batch in batches:
                self.batch(epoch, batches.place, *batch)
                self.moment("end")
            if self.program.get("schedule") in PER_EPOCH:
                self.turn()
            self.evaluate(epoch, "end")
            self.moment("epoch")
            self.model.epoch = epoch + 1

    def batch(self, epoch, place, x, y, numbers):
        many = self.program.get("accumulates", 1)
        last = place % many == many - 1 or place + 1 == BATCHES
        if self.note is not None:
            self.note("tried", epoch, place, numbers, True)
        self.moment("forward")
        with nullcontext() if last else self.model.no_sync():
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(self.program.get("autocast"))):
                loss = functional.cross_entropy(self.model(x), y) / many
            self.moment("loss")
            loss.backward()
        self.moment("backward")
        if last:
            self.moment("step")
            stayed = self.model.step()
            if self.program.get("schedule") in PER_STEP:
                self.turn()
        else:
            stayed = None
        if self.note is not None:
            self.note("given", epoch, place, numbers, stayed)
        if place == 2:
            self.evaluate(epoch, place)
        if place == 3 and self.program.get("saves"):
            self.keep(self)
            self.moment("save")
        if place == 4 and self.program.get("edits"):
            self.edit()

    def turn(self):
        self.schedule.step()
        self.model.state["schedule"] = self.schedule.state_dict()
        groups = self.rule.param_groups
        self.model.state["options"] = [{name: g[name] for name in KEPT if name in g} for g in groups]

    def evaluate(self, epoch, place):
        if not self.program.get("evaluates"):
            return
        self.model.eval()
        with torch.no_grad():
            seen = self.model(data()[1][0]).square().mean()
        self.moment("evaluate")
        self.model.train()
        self.model.state[f"seen {epoch} {place}"] = float(seen)

    def edit(self):
        with self.model.edit(), torch.no_grad():
            for p in self.rule.param_groups[0]["params"]:
                p.mul_(0.99)
            self.moment("edit")


# --- one process ---


class Plain(nn.Module):
    """What stands for the wrapper."""

    def __init__(self, net, rule, clip_norm):
        super().__init__()
        self.net, self.rule, self.clip_norm, self.state, self.epoch = net, rule, clip_norm, {}, 0

    def forward(self, x):
        return self.net(x)

    def no_sync(self):
        return nullcontext()

    edit = no_sync

    def step(self):
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip_norm)
        self.rule.step()
        self.rule.zero_grad()


class Places:
    """What stands for `shard`. `given`: the numbers of the samples that it gives, if not all."""

    def __init__(self, batches, given=None):
        self.batches, self.given = batches, given

    def __iter__(self):
        for place, batch in enumerate(self.batches):
            self.place = place
            yield batch if self.given is None else self._part(batch, self.given.get(place, ()))

    def _part(self, batch, numbers):
        """Where no worker has a sample that counts, one that stands in for it does."""
        rows = [row for row, number in enumerate(batch[2].tolist()) if number in numbers] or [0]
        return [values[rows] for values in batch]


def alone(program, given=None):
    """What plain PyTorch gives, of the samples given by epoch and place, if not of all: parameters, what evaluations
    saw, and what the checkpoint of each epoch held."""
    net, rule = build(program)
    model, kept = Plain(net, rule, program.get("clip_norm")), {}

    def shard(loader):
        of = None if given is None else {place: numbers for (at, place), numbers in given.items() if at == model.epoch}
        return Places(loader, of)

    def keep(run):
        kept[model.epoch] = [v.numpy().copy() for v in net.state_dict().values()]

    Run(program, model, rule, shard, keep=keep).run()
    seen = {name: value for name, value in model.state.items() if name.startswith("seen")}
    return [p.detach().numpy() for p in net.parameters()], seen, kept


# --- one of several workers ---


class Moments:
    """Where this worker dies, or asks for others."""

    def __init__(self, folder, case):
        around = read_environment()
        self.folder, self.job, self.worker, self.counts = Path(folder), around.launch.job, around.launch.rank, {}
        me = f"{self.worker}:{around.incarnation}:"
        self.deaths = {death.removeprefix(me) for death in case["deaths"] if death.startswith(me)}
        asked = [text.removeprefix(me).rpartition(":") for text in case.get("scale", []) if text.startswith(me)]
        self.scale = {at: int(workers) for at, _, workers in asked}
        self.size = None  # when others were asked for

    def __call__(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1
        here = {f"{name} {self.counts[name]}", name}
        for place in here & set(self.scale):
            workers = self.scale[place]
            (self.folder / f"asked-{workers}").touch()
            scale(self.job, workers)
        if name == "forward":
            self._let_come()
        if here & self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    def _let_come(self):
        """Time for a newcomer: until its script has begun, and a moment for its question."""
        job = gradtide.sync.current_job()
        for asked in self.folder.glob("asked-*"):
            workers = int(asked.name.partition("-")[2])
            deadline = time.monotonic() + COMES_S
            while not (self.folder / f"begun-{workers - 1}").exists():
                assert time.monotonic() < deadline, f"worker {workers - 1} does not come"
                time.sleep(0.01)
            if job.size < workers:
                time.sleep(0.03)

    def count(self, owner, name):
        """A method that is called in the middle of a step."""
        method = getattr(owner, name)

        def counted(*arguments, **named):
            found = method(*arguments, **named)
            self("inside")
            return found

        setattr(owner, name, counted)


def way_of(case):
    """`sync` and the other options of DataParallel."""
    way, program = case["way"], case["program"]
    options = {name: program[name] for name in ("clip_norm", "compress") if name in program}
    if way in ("shared", "copies", "auto", "codec"):
        share = {"copies": False, "shared": True}.get(way)
        return {"sync": "auto", "share_parameters": share, **options}
    if way.startswith("local"):
        local = dict(case["local"])
        if "outer" in local:
            local["outer"] = gradtide.update("sgd", **local["outer"])
        if way == "local over servers":
            local["over"] = gradtide.Servers("bsp")
        return {"sync": gradtide.Local(**local), **options}
    mode, _, average = way.partition(" that ")
    return {"sync": gradtide.Servers(mode), **({"share_parameters": False} if average else {}), **options}


def main(folder, text):
    case = json.loads(text)
    program, moment = case["program"], Moments(folder, case)
    torch.set_num_threads(1)
    (Path(folder) / f"begun-{moment.worker}").touch()
    _count_inside(moment)
    net, rule = build(program)
    moment("before")
    model = gradtide.DataParallel(net, rule, **way_of(case))
    moment("wrapped")
    log = Path(folder, f"given-{moment.worker}-{read_environment().incarnation}")
    held = []

    def note(what, epoch, place, numbers, stayed):
        """What a step was tried with is said before it; what it was taken with, once it stays."""
        share = gradtide.sync.current_job().share  # who has no sample gets one that does not count
        line = [epoch, place, numbers.tolist() if share is None or share.samples else []]
        if what == "tried":
            with log.with_name(log.name.replace("given", what)).open("a") as file:
                file.write(json.dumps(line) + "\n")
            return
        held.append(line)
        if stayed is not None:
            with log.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in held if stayed)
            held.clear()

    def keep(run):
        if gradtide.is_main():
            kept = {"model": model.state_dict(), "optimizer": rule.state_dict(), "epoch": model.epoch}
            torch.save(kept, f"{folder}/kept.{os.getpid()}")
            os.replace(f"{folder}/kept.{os.getpid()}", f"{folder}/kept")

    def shard(loader):
        return gradtide.shard(loader, **({"balance": True} if program.get("balance") else {}))

    Run(program, model, rule, shard, moment, note, keep).run()
    moment("close")
    model.close()
    seen = {name: np.array(value) for name, value in model.state.items() if name.startswith("seen")}
    found = {f"p{number}": p.detach().numpy() for number, p in enumerate(net.parameters())}
    np.savez(f"{folder}/{moment.worker}.part.npz", **found, **seen)
    os.replace(f"{folder}/{moment.worker}.part.npz", f"{folder}/{moment.worker}.npz")
    print("done", model.explain(), flush=True)


def _count_inside(moment):
    from gradtide.sync import reduce, servers
    from gradtide.sync.shared import pieces

    moment.count(pieces.Stepper, "step")
    moment.count(reduce.Reduce, "_leave")
    moment.count(servers.ServersWay, "_push")


if __name__ == "__main__":
    main(*sys.argv[1:])
