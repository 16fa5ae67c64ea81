"""A rank of `bench recovery --groups`: recovery_group STEPS_FILE FOLDER BACKEND RANK.

Three ranks add up a tensor a step, in a process group of torch's whose members may change. When the last is killed, the
others reconfigure the group without it, by handles that they had before, and go on. Each step is a line in the file:
rank (10 more once the group has been reconfigured), process, time.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradtide.bench.peers.recovery_torchrun import ELEMENTS

__all__ = ["RANKS", "main"]

RANKS = 3
_LIMIT = timedelta(seconds=60)
_torch: Any = vars(dist)  # torch does not declare all that is in there


def main(steps: Path, folder: Path, backend: str, rank: int) -> None:
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
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
