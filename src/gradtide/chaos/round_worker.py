"""A worker that stays while others come and go: adds ones to every key, round after round, until its standard input
ends; then says how many, and how long each step took."""

import json
import sys
import time

import torch
from torch import Tensor

from gradtide.processes.ready import can_read
from gradtide.store.client.store import connect
from gradtide.store.rules.updates import update
from gradtide.timeouts import Timeouts

__all__ = ["KEYS", "main", "onehot"]

KEYS = tuple(f"round-{i}" for i in range(12))
_THINKS_S = 0.005


def onehot(place: int, places: int, elements: int) -> Tensor:
    value = torch.zeros(max(places, elements), dtype=torch.int64)
    value[place] = 1
    return value


def main(address: str, worker: int, workers: int, places: int, elements: int) -> None:
    value = onehot(worker, places, elements)
    steps_s = []
    patience = Timeouts(step_s=60.0)
    with connect(address, worker=worker, workers=workers, consistency="bsp", timeouts=patience) as store:
        store.init(dict.fromkeys(KEYS, torch.zeros_like(value)), update=update("add"))
        print("ready", flush=True)
        while not can_read([sys.stdin], 0):
            begun_s = time.monotonic()
            store.pull(list(KEYS))
            time.sleep(_THINKS_S)
            store.push(list(KEYS), [value] * len(KEYS)).wait()
            steps_s.append(time.monotonic() - begun_s)
    print(json.dumps({"pushes": len(steps_s), "steps_s": steps_s}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
