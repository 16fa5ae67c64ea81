"""`gradtide bench plan`: what planning costs, from 8 devices to 10,000."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_results, results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["plan"]


def plan(
    hosts: Annotated[str, typer.Option(help="Numbers of hosts, with commas  [default: 1 to 1280]")] = "",
    size: Annotated[str, typer.Option(help="Size of the buffer that is planned")] = "1GB",
    output: Annotated[
        Path | None, typer.Option(help="JSON file to write  [default: runs/bench-plan-DATE.json]")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it  [default: beside the JSON file]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time and memory of `gradtide plan superpod:HOSTS` over the size of the cluster."""
    from gradtide.bench import report
    from gradtide.bench.hosts.planning import HOSTS, bench_planning, draw
    from gradtide.errors import ConfigError

    chosen = [number.strip() for number in hosts.split(",")] if hosts else [str(count) for count in HOSTS]
    if not all(number.isdecimal() and 1 <= int(number) <= 2048 for number in chosen):
        raise ConfigError(
            f"--hosts {hosts!r} makes no sense; write numbers from 1 to 2048 with commas, such as 4,32,128"
        )
    path = results_path("plan", output)
    with telling("starting") as tell:
        costs = list(bench_planning([int(number) for number in chosen], size, tell))
    report.write(path, costs, {"settings": {"size": size}})
    picture = plot or path.with_suffix(".png")
    draw(costs, picture)
    if as_json:
        print_results(costs)
        return
    rows = [
        (f"{cost.devices:,}", f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}", f"{cost.peak_mb:,.0f}", f"{cost.ratio:.3f}")
        for cost in costs
    ]
    print_table(("devices", "seconds", "of CPU", "peak MB", "× bound"), rows, f"planning {size} on superpod:HOSTS")
    say_written(path, picture)
