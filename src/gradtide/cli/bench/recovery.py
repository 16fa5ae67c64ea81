"""`gradtide bench recovery`: from a kill to the next step."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["recovery"]


def recovery(
    kills: Annotated[int, typer.Option(help="How often each contender is killed")] = 10,
    groups: Annotated[
        bool, typer.Option("--groups", help="Process groups whose members change in place, beside Gloo's (torch 2.14)")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-recovery-TIME.json]")] = None,
) -> None:
    """Time from SIGKILL to the next step: a store with a replica, torchrun, and torchft and Ray where installed."""
    from gradtide.bench import report
    from gradtide.bench.recovery import bench_recovery

    path = results_path("recovery", output)
    with telling("starting the contenders") as tell:
        results = bench_recovery(kills, tell, groups=groups)
    rows = []
    for row in results:
        seconds = [f"{s:.3f}" for s in (row.median_s, min(row.seconds), max(row.seconds))]
        rows.append((row.name, *seconds, row.hung, f"{row.median_s / results[0].median_s:.1f}"))
    title = f"seconds from SIGKILL to the next step, {kills} kills each"
    print_table(("", "median s", "min", "max", "hung", "x gradtide"), rows, title)
    report.write(path, results)
    say_written(path)
