"""`gradtide bench …`: gradtide beside its peers, in one run."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench"]

bench = typer.Typer(help="Measure gradtide beside its peers, interleaved in one run.", no_args_is_help=True)


@bench.command()
def train(
    model: Annotated[str, typer.Option(help="lenet or mlp")] = "lenet",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over all devices")] = 256,
    rounds: Annotated[int, typer.Option(help="Every contender runs once a round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="Batches a round")] = 20,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-train-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """Data-parallel training on two devices against plain PyTorch, the textbook's loop and DDP over Gloo."""
    from rich.console import Console

    from gradtide.bench import report
    from gradtide.bench.train import bench_train

    path = output or Path("runs") / f"bench-train-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    settings = {"model": model, "batch_size": batch_size, "rounds": rounds, "steps": steps}
    console = Console(stderr=True)
    with console.status("starting the contenders") as status:
        found, seconds = bench_train(model, batch_size, rounds, steps, status.update)
    report.write(path, settings, "samples/s", found, seconds)
    if as_json:
        print(json.dumps([asdict(row) for row in found]))
    else:
        report.show(f"{model}, batch {batch_size}, median of {rounds} rounds", "samples/s", found)
        Console().print(f"written: {path}", soft_wrap=True)


@bench.command()
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
    from rich.console import Console

    from gradtide.bench import report
    from gradtide.bench.allreduce import bench_allreduce, content, find_mpi, show
    from gradtide.topology.units import parse_size_bytes

    path = output or Path("runs") / f"bench-allreduce-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    mpis = find_mpi(mpi_python or ())
    wanted = [parse_size_bytes(size) for size in sizes.split(",")]
    with Console(stderr=True).status("starting the contenders") as status:
        figures = bench_allreduce(ranks, wanted, rounds, mpis, status.update)
    found = content({"ranks": ranks, "sizes": wanted, "rounds": rounds}, figures)
    path.write_text(json.dumps(found, indent=2) + "\n")
    if as_json:
        print(json.dumps(found["results"]))
    else:
        show(f"all-reduce between {ranks} ranks, median of {rounds} rounds", figures)
        Console().print(f"written: {path}", soft_wrap=True)
