"""A rank of `bench recovery`: under torchrun, recovery_ranks STEPS_FILE CHECKPOINT; or in a process group of torch's
whose members may change, recovery_ranks STEPS_FILE FOLDER BACKEND RANK.

All ranks add up one tensor a step; rank 0 then writes it to a checkpoint, which every rank reads when it starts. Each
step is a line in the file: rank, process, time. A rank that is killed makes torchrun start all of them again.

In a group the last of three ranks is killed. The others reconfigure the group without it, by handles that they had
before, and go on; then their steps have 10 added to the rank.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradtide.store.rules.tensors import bytes_of

__all__ = ["ELEMENTS", "RANKS", "main", "main_of_group"]

ELEMENTS = 1 << 18


def main(steps: Path, checkpoint: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    value = torch.zeros(ELEMENTS)
    if checkpoint.exists():
        bytes_of(value)[:] = checkpoint.read_bytes()
    fresh = checkpoint.with_suffix(".new")
    with steps.open("a") as file:
        while True:
            gradient = torch.ones(ELEMENTS)
            dist.all_reduce(gradient)
            value.add_(gradient)
            if rank == 0:
                fresh.write_bytes(bytes_of(value))
                fresh.replace(checkpoint)
            file.write(f"{rank} {os.getpid()} {time.monotonic()}\n")
            file.flush()


RANKS = 3
_LIMIT = timedelta(seconds=60)
_torch: Any = vars(dist)  # torch does not declare all that is in there


def main_of_group(steps: Path, folder: Path, backend: str, rank: int) -> None:
    store = _torch["FileStore"](str(folder / "store"), RANKS)
    made: Any = dist.init_process_group
    made(backend, store=store, rank=rank, world_size=RANKS, timeout=_LIMIT, enable_reconfigure=True)
    _reconfigure(1, _handles(store, "first", rank))
    handles, later, gradient = _handles(store, "second", rank), 0, torch.ones(ELEMENTS)
    with steps.open("a") as file:
        while True:
            try:
                dist.all_reduce(gradient.fill_(1.0))
            except RuntimeError:
                if later:
                    raise
                later = 10
                _reconfigure(2, handles[: RANKS - 1])
                continue
            file.write(f"{rank + later} {os.getpid()} {time.monotonic()}\n")
            file.flush()


def _handles(store: Any, name: str, rank: int) -> list[str]:
    store.set(f"{name} {rank}", _torch["_get_reconfigure_handle"]())
    return [store.get(f"{name} {other}").decode() for other in range(RANKS)]


def _reconfigure(uuid: int, handles: list[str]) -> None:
    _torch["_reconfigure"](uuid, handles, timeout=_LIMIT).wait()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        main_of_group(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
