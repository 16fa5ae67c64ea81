"""torchft in `bench recovery`: recovery_torchft STEPS_FILE lighthouse|REPLICA [LIGHTHOUSE_ADDRESS].

Each replica adds up one tensor a step with whoever is there, and writes a line when the step is committed. One that
comes back gets the value from the other. The lighthouse is as patient with who is silent as our lease is; all other
waits are torchft's own.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from gradtide.bench.peers.recovery_ranks import ELEMENTS

__all__ = ["lighthouse", "replica"]

_HOST = "127.0.0.1"


def lighthouse() -> None:
    server = LighthouseServer(bind=f"{_HOST}:0", min_replicas=1, heartbeat_timeout_ms=2000)
    print(server.address(), flush=True)
    while True:
        time.sleep(3600.0)


def replica(steps: Path, rank: int, address: str) -> None:
    value = torch.zeros(ELEMENTS)
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=lambda state: value.copy_(state["value"]),
        state_dict=lambda: {"value": value},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr=_HOST,
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"replica{rank}",
        hostname=_HOST,
    )
    with steps.open("a") as file:
        while True:
            manager.start_quorum()
            gradient = torch.ones(ELEMENTS)
            manager.allreduce(gradient).wait()
            if manager.should_commit():
                value.add_(gradient)
                file.write(f"{rank} {os.getpid()} {time.monotonic()}\n")
                file.flush()


if __name__ == "__main__":
    if sys.argv[2] == "lighthouse":
        lighthouse()
    else:
        replica(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
