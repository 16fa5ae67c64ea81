"""`gradtide bench launch`: how soon workers are ready."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_results, results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["launch"]


def launch(
    workers: Annotated[int, typer.Option(help="Processes to start")] = 2,
    rounds: Annotated[int, typer.Option(help="Every launcher starts once a round; the median counts")] = 5,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-launch-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """How soon workers have torch loaded and found each other: gradtide run, torchrun and, where installed, Ray."""
    from gradtide.bench import report
    from gradtide.bench.launch import bench_launch

    path = results_path("launch", output)
    with telling("starting") as tell:
        figures = bench_launch(workers, rounds, tell)
    report.write(path, figures, {"settings": {"workers": workers, "rounds": rounds}})
    if as_json:
        print_results(figures)
        return
    rows = []
    for figure in figures:
        numbers = figure.seconds, figure.seconds_min, figure.seconds_max, figure.ratio
        rows.append((figure.name, *(f"{number:.2f}" for number in numbers)))
    title = f"{workers} workers ready, median of {rounds} rounds"
    print_table(("", "s", "min", "max", f"x {figures[0].name}"), rows, title)
    say_written(path)
