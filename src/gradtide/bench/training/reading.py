"""How long an epoch takes to read where every sample costs time: whole batches, parts, and torch's own sampler."""

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError

__all__ = ["CONTENDERS", "ReadingCase", "bench_reading", "share_of_time"]

# Name in the table -> what reading_worker.py is to be, and on how many workers. The first is the measure.
CONTENDERS = {
    "one worker, plain DataLoader": ("plain", 1),
    "2 workers, whole batches": ("whole", 2),
    "2 workers, each its part": ("part", 2),
    "2 workers, DistributedSampler": ("sampler", 2),
}


@dataclass(frozen=True, slots=True)
class ReadingCase:
    """What is read."""

    samples: int = 512
    sample_ms: float = 1.0  # that a sample takes: it sleeps
    batch_size: int = 64  # of all workers together
    processes: int = 0  # of each worker's DataLoader


def bench_reading(
    case: ReadingCase, rounds: int, tell: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, list[float]]]:
    """Samples per second of all workers together, medians over the rounds; each worker counts what it was given, and
    together that must be each sample once in every epoch."""
    if case.samples < case.batch_size or case.batch_size < 2 or rounds < 1 or case.processes < 0:
        raise ConfigError("there must be a batch of samples, 2 in a batch, 1 round and 0 processes, or more")
    with ExitStack() as stack:
        peers = []
        for name, (kind, workers) in CONTENDERS.items():
            what = [case.samples, case.sample_ms, case.batch_size, case.processes]
            arguments = [kind, *map(str, what), f"bench-{uuid.uuid4().hex}", str(workers)]
            command = ["-m", "gradtide.bench.training.reading_worker", *arguments]
            peers.append(stack.enter_context(Contender(name, [[*command, str(rank)] for rank in range(workers)])))
            peers[-1].wait_until_ready()  # one after the other: to import torch takes each process seconds
        seconds = interleave(peers, rounds, lambda name: 1, tell)
    return report.rows(seconds, case.samples), seconds


def share_of_time(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Each contender's time for an epoch, as a share of one worker's: the median over rounds beside each other."""
    alone = next(iter(seconds.values()))
    return {name: median(a / b for a, b in zip(found, alone, strict=True)) for name, found in seconds.items()}
