"""`gradtide bench trace`: what `--trace` costs a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_compared, say_written, telling

__all__ = ["trace"]


def trace(
    blocks: Annotated[
        int, typer.Option(help="Blocks of four runs: without, with, with, without; the median counts")
    ] = 12,
    turn_s: Annotated[float, typer.Option(help="Seconds of a run that count")] = 6.0,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-trace-TIME.json]")] = None,
) -> None:
    """Compare training with --trace and without, in turn."""
    from gradtide.bench import report
    from gradtide.bench.training.tracing import bench_tracing

    path = results_path("trace", output)
    with telling("starting the first training") as tell:
        rows, cost, seconds = bench_tracing(blocks, turn_s, tell)
    figures = {"traced": asdict(cost.rate), "cpu": asdict(cost.cpu), "store_cpu": asdict(cost.store_cpu)}
    before = {"settings": {"blocks": blocks, "turn_s": turn_s}, "unit": "samples/s", **figures}
    report.write(path, rows, before, {"seconds": seconds})
    print_rates(f"LeNet, 2 workers, 2 servers, {blocks} blocks of four runs of {turn_s:g} s", "samples/s", rows)
    say_compared("samples/s, with to without", cost.rate)
    say_compared("CPU time a sample, with to without", cost.cpu)
    say_compared("CPU time a sample of servers and coordinator, with to without", cost.store_cpu)
    say_written(path)
