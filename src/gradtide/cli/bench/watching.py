"""`gradtide bench dashboard` and `trace`: what watching a run costs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_compared, say_written, telling

__all__ = ["dashboard", "trace"]


def dashboard(
    blocks: Annotated[
        int, typer.Option(help="Blocks of four turns: without a reader, with, with, without; the median counts")
    ] = 70,
    turn_s: Annotated[float, typer.Option(help="Seconds of a turn")] = 2.0,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-dashboard-TIME.json]")] = None,
) -> None:
    """Compare training with a dashboard and a reader of its stream, and without, in turn."""
    from gradtide.bench import report
    from gradtide.bench.training.watching import bench_watching

    path = results_path("dashboard", output)
    with telling("starting the training") as tell:
        rows, cost, seconds = bench_watching(blocks, turn_s, tell)
    figures = {"watched": asdict(cost.rate), "cpu": asdict(cost.cpu)}
    own = {"own": {"cpu": cost.dashboard_cpu, "store_cpu": cost.store_cpu, "messages": cost.messages}}
    before = {"settings": {"blocks": blocks, "turn_s": turn_s}, "unit": "samples/s", **figures, **own}
    report.write(path, rows, before, {"seconds": seconds})
    print_rates(f"LeNet, 2 workers, 2 servers, {blocks} blocks of four turns of {turn_s:g} s", "samples/s", rows)
    say_compared("samples/s with a reader to without", cost.rate)
    say_compared("CPU time a sample of workers, servers and coordinator, with a reader to without", cost.cpu)
    print(
        f"the dashboard took {cost.dashboard_cpu:.2%} of a core, servers and coordinator {cost.store_cpu:.2%} more; "
        f"it sent {cost.messages:,} messages"
    )
    say_written(path)


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
