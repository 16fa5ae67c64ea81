"""`gradtide bench reading`: what it is worth that a worker reads only its part."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling

__all__ = ["reading"]


def reading(
    samples: Annotated[int, typer.Option(help="Samples in an epoch")] = 512,
    sample_ms: Annotated[float, typer.Option(help="Milliseconds that reading a sample takes (it sleeps)")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over both workers")] = 64,
    processes: Annotated[int, typer.Option(help="Processes that each worker's DataLoader reads with")] = 0,
    rounds: Annotated[int, typer.Option(help="Every contender reads one epoch in each round; the median counts")] = 7,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-reading-TIME.json]")] = None,
) -> None:
    """Read an epoch of a slow dataset by one worker and by two, which check that each sample is there."""
    from gradtide.bench import report
    from gradtide.bench.training.reading import ReadingCase, bench_reading, share_of_time

    path = results_path("reading", output)
    with telling("starting the contenders") as tell:
        case = ReadingCase(samples, sample_ms, batch_size, processes)
        rows, seconds = bench_reading(case, rounds, tell)
    shares = share_of_time(seconds)
    before = {"settings": {**asdict(case), "rounds": rounds}, "unit": "samples/s", "share_of_time": shares}
    report.write(path, rows, before, {"seconds": seconds})
    title = (
        f"{samples} samples of {sample_ms:g} ms, batch {batch_size}, {processes} processes, median of {rounds} rounds"
    )
    print_rates(title, "samples/s", rows)
    for name, share in shares.items():
        print(f"{name}: {share:.3f} of one worker's time")
    say_written(path)
