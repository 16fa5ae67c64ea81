"""A worker of `gradtide chaos`: pushes ones to every key until its standard input ends, then says how many.

Each push goes to all keys, so to all servers; its begin and end are noted in a file, to tell how long a kill was felt.
Where keys are compressed each worker has many places of its own in each, so that pushes leave something out; that is
pushed in the end.
"""

import json
import struct
import sys
import time
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from gradtide.processes.ready import can_read
from gradtide.store.client.pending import Pending
from gradtide.store.client.store import connect
from gradtide.timeouts import Timeouts

__all__ = ["KEYS", "TIMES", "main", "no_pushes"]

KEYS = tuple(f"chaos-{i}" for i in range(12))
TIMES = struct.Struct("<dd")  # when a push was begun, and when it was acknowledged
_WINDOW = 4  # pushes under way
_PLACES = 256


def no_pushes(workers: int, *, compressed: bool) -> Tensor:
    """A key in the beginning: a row for each worker."""
    return torch.zeros(workers, _PLACES, dtype=torch.float64) if compressed else torch.zeros(workers, 1).long()


def main(address: str, secret: str, worker: int, workers: int, times: Path, compressed: bool) -> None:
    mine = no_pushes(workers, compressed=compressed)
    mine[worker] = 1
    values = [mine] * len(KEYS)
    under_way: deque[tuple[float, Pending[None]]] = deque()
    pushes = replicated = 0
    timeouts = Timeouts(step_s=60.0)
    with connect(address, secret_file=secret or None, timeouts=timeouts) as store, times.open("wb", 0) as file:
        print("ready", flush=True)
        while under_way or not _told_to_stop():
            stopping = _told_to_stop()
            if not stopping and len(under_way) < _WINDOW:
                handle = store.push(list(KEYS), values)
                assert isinstance(handle, Pending)
                under_way.append((time.monotonic(), handle))
                continue
            begun_s, handle = under_way.popleft()
            handle.wait()
            file.write(TIMES.pack(begun_s, time.monotonic()))
            pushes += 1
            replicated += handle.report is not None and handle.report.replicated
        store.flush_residuals()
        print(json.dumps({"pushes": pushes, "replicated": replicated}), flush=True)


def _told_to_stop() -> bool:
    return bool(can_read([sys.stdin], 0))


if __name__ == "__main__":
    main(
        sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]), sys.argv[6:] == ["compressed"]
    )
