"""fit with accumulation and with local steps, as worker of a job: frugal_fits.py FOLDER STORES.

The stores are addresses, as JSON: one for each case that is trained over servers.
"""

import json
import sys
from functools import partial

import fit_cases
import torch
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import gradtide

OUTER = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)
MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
PLAIN = partial(SGD, lr=0.1)

MSE = "a function with groups"  # a mean over samples of which it is known
OVER_SERVERS = ("class weights", "sum of squares")

# name -> the case, the samples of a batch, the optimizer, and what else fit takes
ACCUMULATED = {
    f"{case}, {way}": (case, 4, MOMENTUM, {"accumulate": 2, **options})
    for case in OVER_SERVERS
    for way, options in {"auto": {}, "ring": {"sync": "ring"}, "2 devices": {"devices": 2}, "servers": {}}.items()
}
DENSE = {  # Local(1) with plain SGD
    f"{case}, met on {devices}": (case, 8, PLAIN, {"sync": gradtide.Local(1), "devices": devices})
    for case in OVER_SERVERS
    for devices in (1, 2)
}
LOCAL = {
    "averaged": (8, MOMENTUM, {"sync": gradtide.Local(2)}),
    "an outer optimizer": (8, MOMENTUM, {"sync": gradtide.Local(2, OUTER)}),
    "after 4": (8, MOMENTUM, {"sync": gradtide.Local(2, after=4)}),
    "2 devices": (8, MOMENTUM, {"sync": gradtide.Local(2), "devices": 2}),
    "accumulated": (4, MOMENTUM, {"sync": gradtide.Local(2), "accumulate": 2}),
    "a shorter window at the end of an epoch": (8, PLAIN, {"sync": gradtide.Local(3)}),
}


def train(case, batch, optimizer, **options):
    net, targets = fit_cases.begin(case), fit_cases.CASES[case][1]
    loss = {name: value for name, value in fit_cases.CASES[case][2].items() if name.startswith("loss")}
    if case == "sum of squares":
        optimizer = partial(optimizer, lr=0.01)
    loader = DataLoader(TensorDataset(fit_cases.X, targets), batch)
    tests = DataLoader(TensorDataset(fit_cases.X, targets), 6)
    history = gradtide.fit(net, loader, test_data=tests, optimizer=optimizer, epochs=2, **loss, **options)
    return {"values": [p.detach() for p in net.parameters()], "tests": history.test_loss, "loss": history.loss}


def main():
    folder, stores = sys.argv[1], json.loads(sys.argv[2])
    found = {}
    for name, (case, batch, optimizer, options) in (ACCUMULATED | DENSE).items():
        if name.endswith("servers"):
            options = {**options, "sync": gradtide.Servers("bsp", address=stores[case])}
        found[name] = train(case, batch, optimizer, **options)
    for name, (batch, optimizer, options) in LOCAL.items():
        found[name] = train(MSE, batch, optimizer, **options)
    torch.save(found, f"{folder}/found-{gradtide.sync.current_job().rank}.pt")


if __name__ == "__main__":
    main()
