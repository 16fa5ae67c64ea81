"""A pipeline of two processes: gradtide against torch's own 1F1B, over Gloo and over gradtide's backend."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.bench.split.by_hand import lines_of, with_gradtide, with_torch
from gradtide.bench.split.cases import find_case
from gradtide.errors import ConfigError

__all__ = ["CONTENDERS", "bench_pipelines", "lines_written"]

# Name in the table -> what peer.py is to be. The first is the measure.
CONTENDERS = {
    "torch's 1F1B over Gloo": "gloo",
    "torch's 1F1B over gradtide": "gradtide",
    "gradtide.ModelParallel": "split",
}


def bench_pipelines(
    model: str, batch_size: int, micro_batches: int, rounds: int, steps: int, tell: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, list[float]]]:
    """Samples per second of each contender with the same cut, medians over the rounds."""
    find_case(model)
    if micro_batches < 1 or rounds < 1 or steps < 1:
        raise ConfigError("there must be 1 micro-batch, 1 round and 1 step or more")
    if batch_size < 1 or batch_size % micro_batches:
        raise ConfigError(
            f"{batch_size} samples don't divide into {micro_batches} micro-batches, which torch's pipelines need; "
            f"try {max(1, batch_size // micro_batches) * micro_batches}"
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")))
        peers = []
        for name, kind in CONTENDERS.items():
            arguments = [kind, model, str(batch_size), str(micro_batches), str(folder / kind)]
            commands = [["-m", "gradtide.bench.split.peer", *arguments, str(rank)] for rank in range(2)]
            peers.append(stack.enter_context(Contender(name, commands)))
        seconds = interleave(peers, rounds, lambda name: steps, tell)
    return report.rows(seconds, batch_size), seconds


def lines_written() -> dict[str, int]:
    """What a user writes for each, by the way."""
    return {"torch.distributed.pipelining": lines_of(with_torch), "gradtide": lines_of(with_gradtide)}
