"""Callbacks that change the model or the optimizer of fit; and a script that trains with them as one worker of a job.

edited_fit.py FOLDER WAY...: every case along each way, a name of WAYS.
"""

import sys

import torch
from torch import nn

import gradtide

RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(37, 5, generator=RANDOM, dtype=torch.float64)
LABELS = torch.randint(0, 3, (37,), generator=RANDOM)


class Gate(nn.Module):
    """Which has a parameter, a buffer and a plain attribute, and is not the same in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.gate, self.temperature = nn.Parameter(torch.ones(())), 1.0

    def forward(self, x):
        return x * self.scale * self.gate / self.temperature if self.training else x


def gated():
    return nn.Sequential(nn.Linear(5, 6), Gate(), nn.Tanh(), nn.Linear(6, 3))


def plain():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def clamp(event, optimizers):
    with torch.no_grad():
        for parameter in event.model.parameters():
            parameter.clamp_(-0.2, 0.2)


def halve(event, optimizers):
    for parameter in event.model.parameters():
        parameter.data.mul_(0.5)


def halve_on_one(event, optimizers):
    if event.is_main:
        halve(event, optimizers)


def load(event, optimizers):
    event.model.load_state_dict({name: tensor * 0.9 for name, tensor in event.model.state_dict().items()})


def replace_data(event, optimizers):
    event.model[-1].weight.data = event.model[-1].weight.data * 0.5


def freeze(event, optimizers):
    event.model[0].requires_grad_(event.epoch % 2 == 0)


def freeze_on_one(event, optimizers):
    if event.is_main:
        freeze(event, optimizers)


def set_others(event, optimizers):
    """What is no parameter."""
    gate = event.model[1]
    gate.temperature *= 2
    gate.scale.mul_(0.5)
    gate.train(event.epoch != 2)


def set_options(event, optimizers):
    group = optimizers[-1].param_groups[0]
    group["lr"], group["momentum"], group["weight_decay"] = group["lr"] / 2, 0.5, 0.1


VALUES = {"clamp": clamp, "halve": halve, "halve on one": halve_on_one, "load": load, "replace data": replace_data}
OTHERS = {"freeze": freeze, "freeze on one": freeze_on_one, "set others": set_others, "set options": set_options}
CASES = {**VALUES, **OTHERS}
WAYS = {
    "1 device": {},
    "2 devices": {"devices": 2},
    "3 devices": {"devices": 3},
    "ring": {"sync": "ring"},
    "split": {"split": "auto"},
    "split, 2 devices": {"split": "auto", "devices": 2},
    "local": {"sync": gradtide.Local(2)},
}


def cases_of(way):
    return VALUES if "split" in way else CASES


def train(case, way):
    made = []

    def optimizer(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        return made[-1]

    def edit(event):
        if isinstance(event, gradtide.EpochEnd):
            CASES[case](event, made)

    torch.manual_seed(1)
    net = (plain() if case in VALUES else gated()).double()
    options = {"optimizer": optimizer, "callbacks": [edit], "epochs": 3, "batch_size": 9, "progress": False}
    gradtide.fit(net, (X, LABELS), validation=(X, LABELS), **options, **WAYS[way])
    return net.state_dict()


def main():
    folder, *ways = sys.argv[1:]
    found = {(case, way): train(case, way) for way in ways for case in cases_of(way)}
    torch.save(found, f"{folder}/found-{gradtide.rank()}.pt")


if __name__ == "__main__":
    main()
