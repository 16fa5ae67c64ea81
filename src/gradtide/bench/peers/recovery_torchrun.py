"""A rank of `bench recovery` under torchrun: recovery_torchrun STEPS_FILE CHECKPOINT.

All ranks add up one tensor a step; rank 0 then writes it to a checkpoint, which every rank reads when it starts. Each
step is a line in the file: rank, process, time. A rank that is killed makes torchrun start all of them again.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gradtide.store.rules.tensors import bytes_of

__all__ = ["ELEMENTS", "main"]

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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
