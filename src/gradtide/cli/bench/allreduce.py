"""`gradtide bench allreduce`: collectives against Gloo and MPI."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_results, results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["allreduce"]


def allreduce(
    ranks: Annotated[int, typer.Option(help="Processes on this host")] = 2,
    sizes: Annotated[str, typer.Option(help="Sizes, with commas")] = "4KiB,64KiB,1MiB,16MiB,64MiB,160MiB",
    rounds: Annotated[int, typer.Option(help="Every contender takes its turn once a round; the median counts")] = 7,
    mpi_python: Annotated[
        list[str] | None, typer.Option(help="A Python that has mpi4py; once for each MPI  [default: this one]")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-allreduce-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """All-reduce on shared and on ordinary tensors against Gloo and, where mpi4py is installed, MPI."""
    from gradtide.bench import report
    from gradtide.bench.allreduce import bench_allreduce, find_mpi
    from gradtide.topology.units import parse_size_bytes

    path = results_path("allreduce", output)
    mpis = find_mpi(mpi_python or ())
    wanted = [parse_size_bytes(size) for size in sizes.split(",")]
    with telling("starting the contenders") as tell:
        figures = bench_allreduce(ranks, wanted, rounds, mpis, tell)
    report.write(path, figures, {"settings": {"ranks": ranks, "sizes": wanted, "rounds": rounds}})
    if as_json:
        print_results(figures)
        return
    rows = []
    for figure in figures:
        times = [f"{1e6 * seconds:,.1f}" for seconds in (figure.seconds, figure.seconds_min, figure.seconds_max)]
        rows.append((f"{figure.size_bytes:,}", figure.name, *times, f"{figure.ratio:.2f}"))
    title = f"all-reduce between {ranks} ranks, median of {rounds} rounds"
    print_table(("bytes", "", "µs", "min", "max", "x fastest peer"), rows, title)
    say_written(path)
