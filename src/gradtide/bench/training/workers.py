"""gradtide with several workers against processes that never synchronise and DDP over Gloo, interleaved in one run."""

import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError
from gradtide.store import local_servers
from gradtide.train.models import check_model

__all__ = ["CONTENDERS", "bench_workers"]

# Name in the table -> what peers/workers.py is to be. The first is the measure.
CONTENDERS = {
    "never synchronised": "independent",
    "never synchronised, freed memory kept": "independent-kept",
    "DDP over Gloo": "ddp",
    "DDP over Gloo, bucket views": "ddp-views",
    "DDP over gradtide, bucket views": "ddp-gradtide",
    "gradtide, shared parameters": "shared",
    "gradtide, all-reduce": "reduce",
    "gradtide, 2 servers, bsp": "servers",
}


def bench_workers(
    model: str, batch_size: int, workers: int, rounds: int, steps: int, tell: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, list[float]]]:
    """Samples per second of all workers together, each with one thread, medians over the rounds."""
    check_model(model)
    if batch_size < workers or rounds < 1 or steps < 1:
        raise ConfigError("the batch needs a sample a worker or more, and there must be 1 round and 1 step or more")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")))
        servers = stack.enter_context(local_servers(2))
        peers = []
        for name, kind in CONTENDERS.items():
            meeting = str(folder / kind) if kind.startswith("ddp") else f"bench-{uuid.uuid4().hex}"
            arguments = [kind, model, str(batch_size // workers), str(workers), meeting, servers.address]
            commands = [["-m", "gradtide.bench.peers.workers", *arguments, str(rank)] for rank in range(workers)]
            peers.append(stack.enter_context(Contender(name, commands)))
        seconds = interleave(peers, rounds, lambda name: steps, tell)
    return report.rows(seconds, batch_size // workers * workers), seconds
