"""`gradtide bench overlap`: what sending gradients while backward goes on is worth, between two hosts."""

import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["overlap"]


def overlap(
    model: Annotated[str, typer.Option(help="lenet, mlp or deep")] = "deep",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over both workers")] = 512,
    rate: Annotated[str, typer.Option(help="Of the wire between the hosts, as tc writes it")] = "1gbit",
    rounds: Annotated[int, typer.Option(help="Every contender runs once a round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="Batches a round")] = 4,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-overlap-TIME.json]")] = None,
) -> None:
    """Two workers in two network namespaces (as root), with and without overlap, beside the planner's prediction."""
    from rich.console import Console

    from gradtide.bench import report
    from gradtide.bench.overlap import bench_overlap

    path = output or Path("runs") / f"bench-overlap-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    with Console(stderr=True).status("starting the contenders") as status:
        found, seconds, predicted = bench_overlap(model, batch_size, rate, rounds, steps, status.update)
    settings = {"model": model, "batch_size": batch_size, "rate": rate, "rounds": rounds, "steps": steps}
    report.write(path, settings | {"predicted_step_s": predicted}, "samples/s", found, seconds)
    report.show(f"{model}, batch {batch_size}, two hosts at {rate}, median of {rounds} rounds", "samples/s", found)
    for row in found:
        if row.name in predicted:
            typer.echo(f"{row.name}: a step {batch_size / row.per_s:.3f} s; predicted {predicted[row.name]:.3f} s")
    Console().print(f"written: {path}", soft_wrap=True)
