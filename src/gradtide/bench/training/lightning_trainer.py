"""Lightning's Trainer with gradtide's strategy beside the same Trainer with DDP over Gloo, interleaved in one run."""

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError
from gradtide.launch.spec import free_port
from gradtide.train.models import check_model

__all__ = ["CONTENDERS", "bench_lightning"]

# Name in the table -> what lightning_worker.py is to be. The first is the measure.
CONTENDERS = {
    "Lightning, DDP over Gloo": "gloo",
    "Lightning, DDP over gradtide": "ddp-gradtide",
    "Lightning, gradtide's strategy": "gradtide",
}


def bench_lightning(
    model: str, batch_size: int, workers: int, rounds: int, steps: int, tell: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, list[float]]]:
    """Samples per second of all workers together, each with one thread, medians over the rounds."""
    check_model(model)
    if importlib.util.find_spec("lightning") is None:
        raise ConfigError("--trainer lightning needs Lightning: pip install 'gradtide[lightning]'")
    if workers < 1 or batch_size < workers or rounds < 1 or steps < 1:
        raise ConfigError("the batch needs a sample a worker or more, and there must be 1 round and 1 step or more")
    with ExitStack() as stack:
        peers = []
        for name, kind in CONTENDERS.items():
            arguments = [kind, model, str(batch_size // workers), str(workers), str(free_port())]
            command = ["-m", "gradtide.bench.training.lightning_worker", *arguments]
            peers.append(stack.enter_context(Contender(name, [[*command, str(rank)] for rank in range(workers)])))
            peers[-1].wait_until_ready()  # one after the other: to import Lightning takes each process seconds
        seconds = interleave(peers, rounds, lambda name: steps, tell)
    return report.rows(seconds, batch_size // workers * workers), seconds
