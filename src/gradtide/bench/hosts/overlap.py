"""What sending gradients while backward goes on is worth: two workers on two hosts that a slow wire joins."""

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError
from gradtide.testing.hosts import ADDRESSES, INTERFACES, two_hosts
from gradtide.train.models import check_model

__all__ = ["CONTENDERS", "bench_overlap"]

# Name in the table -> what peers/overlap.py is to be. The first is the measure.
CONTENDERS = {
    "never synchronised": "independent",
    "DDP over Gloo": "ddp",
    "DDP over gradtide": "ddp-gradtide",
    "gradtide, no overlap": "apart",
    "gradtide, overlap": "overlap",
}
_FIRST_PORT = 29_700


def bench_overlap(
    model: str, batch_size: int, rate: str, rounds: int, steps: int, tell: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, list[float]], dict[str, float]]:
    """Samples per second of both workers; and the seconds that a step should take by what the links did, for two."""
    check_model(model)
    if batch_size < 2 or rounds < 1 or steps < 1:
        raise ConfigError("the batch needs 2 samples or more, and there must be 1 round and 1 step or more")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")))
        hosts = stack.enter_context(two_hosts(rate))
        peers = []
        for number, (name, kind) in enumerate(CONTENDERS.items()):
            command = ["-m", "gradtide.bench.peers.overlap", kind, model, str(batch_size // 2), str(folder / kind)]
            inside = [[*hosts[rank], "env", *_environment(rank, _FIRST_PORT + number)] for rank in range(2)]
            peers.append(stack.enter_context(Contender(name, [command, command], inside)))
            peers[-1].wait_until_ready()  # before the next one starts: it measures what it predicts from
        seconds = interleave(peers, rounds, lambda name: steps, tell)
        predicted = {name: _prediction(folder / kind) for name, kind in CONTENDERS.items() if (folder / kind).exists()}
    return report.rows(seconds, batch_size // 2 * 2), seconds, predicted


def _environment(rank: int, port: int) -> list[str]:
    return [
        f"RANK={rank}",
        "WORLD_SIZE=2",
        f"MASTER_ADDR={ADDRESSES[0]}",
        f"MASTER_PORT={port}",
        f"GLOO_SOCKET_IFNAME={INTERFACES[rank]}",
    ]


def _prediction(path: Path) -> float:
    return float(json.loads(path.read_text())["step_s"])
