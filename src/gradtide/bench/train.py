"""gradtide with two devices against plain PyTorch, the textbook's loop and DDP over Gloo, interleaved in one run."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError
from gradtide.train.models import check_model

__all__ = ["CONTENDERS", "bench_train"]

# Name in the table -> what peers/train.py is to be, and in how many processes. The first is the measure.
CONTENDERS: dict[str, tuple[list[str], int]] = {
    "plain, 1 thread": (["plain", "1"], 1),
    "plain, 2 threads": (["plain", "2"], 1),
    "textbook's loop": (["textbook", "1"], 1),
    "DDP over Gloo, 2 processes": (["ddp", "1"], 2),
    "2 threads, never synchronised": (["unsynchronised", "2"], 1),
    "gradtide, 2 devices": (["gradtide", "2"], 1),
}


def bench_train(
    model: str, batch_size: int, rounds: int, steps: int, tell: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, list[float]]]:
    """Samples per second of each contender on the same batch, medians over the rounds."""
    check_model(model)
    if batch_size < 2 or rounds < 1 or steps < 1:
        raise ConfigError("the batch needs 2 samples or more, and there must be 1 round and 1 step or more")
    with ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-"))) / "store"
        peers = [
            stack.enter_context(Contender(name, _commands(what, processes, model, batch_size, meeting)))
            for name, (what, processes) in CONTENDERS.items()
        ]
        seconds = interleave(peers, rounds, lambda name: steps, tell)
    return report.rows(seconds, batch_size), seconds


def _commands(what: list[str], processes: int, model: str, batch_size: int, meeting: Path) -> list[list[str]]:
    arguments = [*what, model, str(batch_size), str(processes), str(meeting)]
    return [["-m", "gradtide.bench.peers.train", *arguments, str(rank)] for rank in range(processes)]
