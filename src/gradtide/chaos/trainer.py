"""A worker of `gradtide chaos --soak` and `--overload`: trains in bsp until its standard input ends, then says how far.

The least-squares fit of a small network; the parameters live in the store, which runs Adam on them.
"""

import json
import sys

import torch
from torch import nn

from gradtide.processes.ready import can_read
from gradtide.store.client.store import connect
from gradtide.store.rules.updates import update
from gradtide.timeouts import Timeouts

__all__ = ["main"]

_PAUSE_S = 0.01  # a step on a device would take some time, and let others run


def main(address: str, worker: int, workers: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
    generator = torch.Generator().manual_seed(worker)
    data, target = torch.randn(64, 64, generator=generator), torch.randn(64, 8, generator=generator)
    names, parameters = zip(*model.named_parameters(), strict=True)
    timeouts, steps, loss = Timeouts(step_s=60.0), 0, 0.0
    with connect(address, worker=worker, workers=workers, consistency="bsp", timeouts=timeouts) as store:
        store.init({name: p.detach() for name, p in model.named_parameters()}, update=update("adam", lr=1e-3))
        print("ready", flush=True)
        while not can_read([sys.stdin], _PAUSE_S):
            for parameter, value in zip(parameters, store.pull(list(names)), strict=True):
                parameter.data.copy_(value)
            model.zero_grad()
            error = ((model(data) - target) ** 2).mean()
            error.backward()
            store.push(list(names), [p.grad for p in parameters]).wait()
            steps, loss = steps + 1, error.item()
        print(json.dumps({"steps": steps, "loss": loss}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
