"""Bytes that the devices of a split model send are the closed form's, to the byte."""

import threading
from collections import Counter

import pytest
import split_runs as runs
import torch
from torch.nn import functional

import gradtide
from gradtide.parallel.split.profile import profile
from gradtide.parallel.split.run.speaking.threads import ThreadCommunicator
from gradtide.parallel.split.run.walk import Walk
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.proof import verify_step
from gradtide.schedule.step.shaping import shape_of
from gradtide.sync import Job

BATCH = 16
TOWERS = {"conv1": "channels", "conv2": "groups", "conv3": "channels", "conv4": "groups", "conv5": "groups"}
DENSE = {"fc6": "columns", "fc7": "columns", "fc8": "columns"}


class Meter:
    """Counts what leaves devices while they take a step's tasks; not what they tell each other afterwards."""

    def __init__(self, monkeypatch):
        self.bytes, self._walking, self._lock = Counter(), threading.local(), threading.Lock()
        run = Walk.run

        def walking(walk):
            self._walking.now = True
            try:
                run(walk)
            finally:
                self._walking.now = False

        monkeypatch.setattr(Walk, "run", walking)
        self._watch(monkeypatch, "send", lambda values, to, tag: sum(_size(value) for value in values))
        self._watch(monkeypatch, "gather", lambda tensor, members, shapes: _size(tensor) * (len(members) - 1))
        self._watch(
            monkeypatch, "add_up", lambda tensor, members: 2 * _size(tensor) * (len(members) - 1) / len(members)
        )
        self._watch(monkeypatch, "begin_sum", lambda tensor, members, at_once: _size(tensor))
        swap = ThreadCommunicator.swap

        def swapped(end, parts, members):
            own = list(members).index(end.rank)
            self._count("swap", sum(_size(part) for at, part in enumerate(parts) if at != own))
            return swap(end, parts, members)

        monkeypatch.setattr(ThreadCommunicator, "swap", swapped)

    def _watch(self, monkeypatch, name, size):
        method = getattr(ThreadCommunicator, name)

        def counted(end, *arguments):
            self._count(name, size(*arguments))
            return method(end, *arguments)

        monkeypatch.setattr(ThreadCommunicator, name, counted)

    def _count(self, name, size):
        if getattr(self._walking, "now", False):
            with self._lock:
                self.bytes[name] += size


def _size(value):
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _layout(kind, units):
    if kind != "tensor 2":
        return runs.layout_of(kind, units, 4)
    return Layout(tuple(units), (Stage(0, len(units), (0, 1), 2, ways=tuple((TOWERS | DENSE).items())),), 4)


@pytest.mark.parametrize(("kind", "devices"), [("pipeline 2", 2), ("tensor 2", 2), ("data 2 pipeline 2", 4)])
def test_what_leaves_the_devices_is_what_the_proof_says(monkeypatch, kind, devices):
    net = runs.build("alexnet", torch.float32)
    x, y = torch.randn(BATCH, 3, 67, 67), torch.randint(0, 10, (BATCH,))
    costs = profile(trace(net, x[:4]), x, samples=BATCH, threads=1)
    layout = _layout(kind, [unit.name for unit in costs.units])
    plan = build_step(shape_of(layout, costs))
    proof = verify_step(plan)
    model = gradtide.ModelParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), layout, devices=devices, job=Job())
    model.step(x, y, functional.cross_entropy)
    meter = Meter(monkeypatch)
    model.step(x, y, functional.cross_entropy)
    model.close()
    summed = meter.bytes.pop("begin_sum", 0)
    assert sum(meter.bytes.values()) == proof.sent_bytes > 0
    held = sum(one.bytes * len(one.devices) for one in plan.sums)
    flags = 4 * len(list(net.parameters())) * 2 if plan.sums else 0  # whether a parameter had a gradient at all
    assert summed == held + flags
