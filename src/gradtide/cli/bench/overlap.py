"""`gradtide bench overlap`: what sending gradients while backward goes on is worth, between two hosts."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["overlap"]


def overlap(
    model: Annotated[str, typer.Option(help="lenet, mlp or deep")] = "deep",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over both workers")] = 512,
    rate: Annotated[str, typer.Option(help="Rate of the wire between the hosts, as tc writes it")] = "1gbit",
    rounds: Annotated[int, typer.Option(help="Every contender runs once in each round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="Batches in a round")] = 4,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-overlap-TIME.json]")] = None,
) -> None:
    """Compare two workers in two network namespaces (as root), with and without overlap, with DDP and predictions."""
    from gradtide.bench import report
    from gradtide.bench.hosts.overlap import bench_overlap

    path = results_path("overlap", output)
    with telling("starting the contenders") as tell:
        found, seconds, predicted = bench_overlap(model, batch_size, rate, rounds, steps, tell)
    settings = {"model": model, "batch_size": batch_size, "rate": rate, "rounds": rounds, "steps": steps}
    settings |= {"predicted_step_s": predicted}
    report.write(path, found, {"settings": settings, "unit": "samples/s"}, {"seconds": seconds})
    print_rates(f"{model}, batch {batch_size}, two hosts at {rate}, median of {rounds} rounds", "samples/s", found)
    steps_s = {row.name: batch_size / row.per_s for row in found if row.name in predicted}
    if steps_s:
        rows = [(name, f"{step_s:.3f}", f"{predicted[name]:.3f}") for name, step_s in steps_s.items()]
        print_table(("", "a step, s", "predicted"), rows)
    say_written(path)
