"""`gradtide bench checkpoint`: how much a checkpoint slows a worker."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["checkpoint"]

HEADINGS = ("GB", "checkpoint", "cached", "direct", "step", "meanwhile", "slower", "longest")


def checkpoint(
    size: Annotated[str, typer.Option(help="Size of the store")] = "2GB",
    servers: Annotated[int, typer.Option(help="Servers that write")] = 1,
    rounds: Annotated[int, typer.Option(help="How many rounds; the median counts")] = 3,
    steps: Annotated[int, typer.Option(help="Steps to time without a checkpoint, each round")] = 3,
    folder: Annotated[
        Path | None, typer.Option(help="Folder on the disk to measure  [default: that of temporary files]")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-checkpoint-TIME.json]")] = None,
) -> None:
    """Measure how much a checkpoint slows a worker, and its rate compared with the disk's own, in one run."""
    from statistics import median

    from gradtide.bench import report
    from gradtide.bench.checkpoint import bench_checkpoint
    from gradtide.topology.units import parse_size_bytes

    path = results_path("checkpoint", output)
    with telling("starting") as tell:
        found = bench_checkpoint(parse_size_bytes(size), servers, rounds, steps, folder, tell)
    rows = []
    for row in found:
        disk = (f"{row.checkpoint_s:.1f}", f"{row.cached_s:.1f}", f"{row.direct_s:.1f}")
        step = (f"{row.step_s:.2f}", f"{row.step_meanwhile_s:.2f}", f"{row.slower:+.0%}", f"{row.longest_s:.2f}")
        rows.append((f"{row.size_bytes / 1e9:.2f}", *disk, *step))
    print_table(HEADINGS, rows, "a checkpoint, the disk alone with and without the page cache, and steps; in seconds")
    cached, direct = median(row.of_cached for row in found), median(row.of_direct for row in found)
    slower = median(row.slower for row in found)
    print(
        f"median of {rounds}: {cached:.0%} of the disk's own rate through the page cache, {direct:.0%} of that past "
        f"it, workers slowed by {slower:.0%}"
    )
    report.write(path, found)
    say_written(path)
