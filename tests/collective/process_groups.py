"""What ranks' processes need to test torch.distributed over gradtide."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from gradtide.registration import register

register()  # as torch does by itself where gradtide is installed


@contextlib.contextmanager
def process_group(rank: int, size: int, path: str, backend: str = "gradtide", timeout_s: float = 60) -> Iterator[None]:
    """The default process group, for as long as the block lasts."""
    start(rank, size, path, backend, timeout_s)
    try:
        yield
    finally:
        dist.destroy_process_group()


def start(rank: int, size: int, path: str, backend: str = "gradtide", timeout_s: float = 60) -> int:
    """A TCP store on a port that is free, as launchers use; `path` is a file through which the ranks learn the port."""
    meeting = dist.FileStore(path, size)
    port = 0 if rank == 0 else int(meeting.get("port"))
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        meeting.set("port", str(store.port))
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    return os.getpid()
