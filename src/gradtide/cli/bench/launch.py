"""`gradtide bench launch`: how soon workers are ready."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_results, results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["launch"]


def launch(
    workers: Annotated[int, typer.Option(help="Processes to start")] = 2,
    rounds: Annotated[int, typer.Option(help="Every launcher starts once in each round; the median counts")] = 5,
    engine: Annotated[str, typer.Option(help="local, or ray: compared with bare Ray actors on one cluster")] = "local",
    address: Annotated[
        str, typer.Option(help="Address of that cluster; without one, a cluster of this machine alone")
    ] = "",
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-launch-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """Time until workers have loaded torch and found each other: gradtide run, torchrun and, where installed, Ray."""
    from gradtide.bench import report
    from gradtide.bench.launch import bench_launch, bench_launch_on_ray
    from gradtide.errors import ConfigError

    if engine not in ("local", "ray") or (address and engine == "local"):
        raise ConfigError("--engine is local or ray, and --address is for --engine ray")

    path = results_path("launch", output)
    with telling("starting") as tell:
        on_ray = engine == "ray"
        figures = bench_launch_on_ray(workers, rounds, address, tell) if on_ray else bench_launch(workers, rounds, tell)
    report.write(path, figures, {"settings": {"workers": workers, "rounds": rounds, "engine": engine}})
    if as_json:
        print_results(figures)
        return
    rows = []
    for figure in figures:
        numbers = figure.seconds, figure.seconds_min, figure.seconds_max, figure.added, figure.ratio
        rows.append((figure.name, *("" if number is None else f"{number:.2f}" for number in numbers)))
    title = f"{workers} workers ready, median of {rounds} rounds"
    print_table(("", "s", "min", "max", "first sum", f"x {figures[0].name}"), rows, title)
    say_written(path)
