"""One rank of the contenders that live in torch: gradtide on shared and on ordinary tensors, as a backend, and Gloo."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.groups.group import Group
from gradtide.registration import register


def main(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    group = Group.join(Path(folder).name, rank, size, timeout_s=600)
    register()
    backend = dist.new_group(backend="gradtide")
    through: dict[str, Any] = {"gloo": dist.all_reduce, "c10d": partial(dist.all_reduce, group=backend)}
    shared: dict[int, torch.Tensor] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        _, times, size_bytes, kind = line.split()
        count = int(size_bytes) // 4
        if count not in shared:
            shared = {count: group.shared_tensor(count)}
            ordinary = torch.zeros(count)
        tensor = shared[count] if kind == "shared" else ordinary
        step = through.get(kind, group.all_reduce)
        group.barrier()
        started = time.perf_counter()
        for _ in range(int(times)):
            step(tensor)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
