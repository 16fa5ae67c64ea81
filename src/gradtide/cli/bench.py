"""`gradtide bench …`: gradtide beside its peers, in one run."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench_overlap import overlap

__all__ = ["bench"]

bench = typer.Typer(help="Measure gradtide beside its peers, interleaved in one run.", no_args_is_help=True)
bench.command()(overlap)


@bench.command()
def train(
    model: Annotated[str, typer.Option(help="lenet, mlp or deep")] = "lenet",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over all devices or workers")] = 256,
    workers: Annotated[int, typer.Option(help="So many processes, instead of the devices of one")] = 0,
    rounds: Annotated[int, typer.Option(help="Every contender runs once a round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="Batches a round")] = 20,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-train-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """Data-parallel training on two devices against plain PyTorch, the textbook's loop and DDP over Gloo.

    With --workers 2: in processes of one thread each, against some that never synchronise, and DDP over Gloo.
    """
    from rich.console import Console

    from gradtide.bench import report
    from gradtide.bench.train import bench_train
    from gradtide.bench.workers import bench_workers

    path = output or Path("runs") / f"bench-train-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    settings = {"model": model, "batch_size": batch_size, "workers": workers, "rounds": rounds, "steps": steps}
    console = Console(stderr=True)
    with console.status("starting the contenders") as status:
        if workers:
            found, seconds = bench_workers(model, batch_size, workers, rounds, steps, status.update)
        else:
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


@bench.command()
def store(
    sizes: Annotated[str, typer.Option(help="Of a push_pull, with commas")] = "4KiB,64KiB,1MiB,16MiB",
    workers: Annotated[int, typer.Option(help="Workers at once")] = 1,
    servers: Annotated[int, typer.Option(help="Servers that share the keys")] = 1,
    replicas: Annotated[int, typer.Option(help="Also gradtide with so many replicas; needs more servers")] = 0,
    idle: Annotated[int, typer.Option(help="Also gradtide with so many sockets a server that say nothing")] = 0,
    placement: Annotated[
        str, typer.Option(help="any; apart or together: the two ends on two processors or on one, for all alike")
    ] = "any",
    rounds: Annotated[int, typer.Option(help="Every contender runs once a round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="push_pulls of 4 KB a round; fewer of larger ones")] = 500,
    with_curve: Annotated[
        bool, typer.Option("--curve", help="Also m workers over n servers, beside the simulated curve")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-store-TIME.json]")] = None,
) -> None:
    """push_pull against a bare pair of sockets, torch's copy_, and Redis and a Ray actor where they are installed."""
    from rich.console import Console
    from rich.table import Table

    from gradtide.bench import report
    from gradtide.bench.machine import describe_machine
    from gradtide.bench.store import Case, bench_store, curve
    from gradtide.topology.units import parse_size_bytes

    chosen = [parse_size_bytes(size) for size in sizes.split(",")]
    path = output or Path("runs") / f"bench-store-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    results, points = [], []
    with Console(stderr=True).status("starting the contenders") as status:
        for size in chosen:
            case = Case(size, workers, servers, placement, replicas, idle)
            results += bench_store(case, rounds, max(3, min(steps, steps * 65536 // size)), status.update)
        if with_curve:
            points = curve(chosen[-1], rounds, 5, status.update)
    table = Table(title=f"push_pull, {workers} workers, {servers} servers, placed {placement}, median of {rounds}")
    for heading in ("bytes", "", "µs", "min", "max", "x bare pair", "GB/s"):
        table.add_column(heading, justify="right")
    for row in results:
        microseconds = [f"{1e6 * s:,.0f}" for s in (row.seconds, row.seconds_min, row.seconds_max)]
        numbers = [f"{row.to_bare:.2f}", f"{row.bytes_per_s / 1e9:.2f}"]
        table.add_row(f"{row.case.size_bytes:,}", row.name, *microseconds, *numbers)
    Console().print(table)
    for point in points:
        measured, simulated = 1e3 * point.measured_s, 1e3 * point.simulated_s
        typer.echo(f"{point.workers} workers, {point.servers} servers: {measured:.1f} ms; simulated {simulated:.1f} ms")
    content = {
        "machine": describe_machine().as_dict(),
        "results": [asdict(row) for row in results],
        "curve": [asdict(point) for point in points],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(f"written: {path}", soft_wrap=True)


@bench.command()
def recovery(
    kills: Annotated[int, typer.Option(help="How often each contender is killed")] = 10,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-recovery-TIME.json]")] = None,
) -> None:
    """From SIGKILL to the next step: a store with a replica against torchrun, and torchft and Ray where installed."""
    from rich.console import Console
    from rich.table import Table

    from gradtide.bench import report
    from gradtide.bench.machine import describe_machine
    from gradtide.bench.recovery import HUNG_S, bench_recovery

    path = output or Path("runs") / f"bench-recovery-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    with Console(stderr=True).status("starting the contenders") as status:
        results = bench_recovery(kills, status.update)
    table = Table(title=f"seconds from SIGKILL to the next step, {kills} kills each")
    for heading in ("", "median", "min", "max", "hung", "x gradtide"):
        table.add_column(heading, justify="right")
    for row in results:
        seconds = [f"{s:.3f}" for s in (row.median_s, min(row.seconds), max(row.seconds))]
        hung = sum(s >= HUNG_S for s in row.seconds)
        table.add_row(row.name, *seconds, str(hung), f"{row.median_s / results[0].median_s:.1f}")
    Console().print(table)
    content = {"machine": describe_machine().as_dict(), "results": [asdict(row) for row in results]}
    path.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(f"written: {path}", soft_wrap=True)


@bench.command()
def checkpoint(
    size: Annotated[str, typer.Option(help="Of the store")] = "2GB",
    servers: Annotated[int, typer.Option(help="Servers that write")] = 1,
    rounds: Annotated[int, typer.Option(help="How often; the median counts")] = 3,
    steps: Annotated[int, typer.Option(help="Steps to time without a checkpoint, each round")] = 3,
    folder: Annotated[Path | None, typer.Option(help="On which disk  [default: that of temporary files]")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-checkpoint-TIME.json]")] = None,
) -> None:
    """How much a checkpoint slows a worker, and its rate beside the disk's own, in one run."""
    from statistics import median

    from rich.console import Console

    from gradtide.bench import report
    from gradtide.bench.checkpoint import bench_checkpoint
    from gradtide.bench.machine import describe_machine
    from gradtide.topology.units import parse_size_bytes

    path = output or Path("runs") / f"bench-checkpoint-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    with Console(stderr=True).status("starting") as status:
        found = bench_checkpoint(parse_size_bytes(size), servers, rounds, steps, folder, status.update)
    for row in found:
        typer.echo(
            f"{row.size_bytes / 1e9:.2f} GB in {row.checkpoint_s:.1f} s; the disk alone: {row.cached_s:.1f} s through "
            f"the page cache, {row.direct_s:.1f} s past it; a step took {row.step_meanwhile_s:.2f} s meanwhile, "
            f"{row.step_s:.2f} s before: {row.slower:+.0%}, the longest {row.longest_s:.2f} s"
        )
    cached, direct = median(row.of_cached for row in found), median(row.of_direct for row in found)
    slower = median(row.slower for row in found)
    typer.echo(
        f"median of {rounds}: {cached:.0%} of the disk's own rate through the page cache, {direct:.0%} of that past "
        f"it, workers slowed by {slower:.0%}"
    )
    content = {"machine": describe_machine().as_dict(), "results": [asdict(row) for row in found]}
    path.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(f"written: {path}", soft_wrap=True)


@bench.command()
def staleness(
    seeds: Annotated[str, typer.Option(help="With commas; each takes nine runs")] = "0,1,2",
    steps: Annotated[int, typer.Option(help="Of each worker, in each run")] = 280,
    output: Annotated[
        Path | None, typer.Option(help="JSON file to add to  [default: runs/bench-staleness.json]")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the curves  [default: beside the JSON file]")] = None,
) -> None:
    """Time to 80 % on Fashion-MNIST through servers: bsp, bounded:4 and async, when workers are not equally fast."""
    from rich.console import Console
    from rich.table import Table

    from gradtide.bench import report
    from gradtide.bench.staleness import GOAL, TITLES, bench_staleness, draw, keep, table
    from gradtide.errors import ConfigError

    chosen = [seed.strip() for seed in seeds.split(",")]
    if not all(seed.isdecimal() for seed in chosen) or steps < 1:
        raise ConfigError(
            f"--seeds {seeds!r} --steps {steps} makes no sense; write seeds with commas, and 1 step or more"
        )
    path = output or Path("runs") / "bench-staleness.json"
    report.check_output(path)
    with Console(stderr=True).status("starting") as status:
        for result in bench_staleness([int(seed) for seed in chosen], steps, status.update):
            results = keep(path, result)
    shown = Table(title=f"seconds to a test accuracy of {GOAL:.0%}")
    for heading in ("", "mode", "mean", "min", "max", "reached"):
        shown.add_column(heading, justify="right")
    for line in table(results):
        seconds = [f"{line[name]:.1f}" if name in line else "-" for name in ("mean_s", "min_s", "max_s")]
        shown.add_row(TITLES[line["weather"]], line["mode"], *seconds, f"{line['reached']} of {line['runs']}")
    Console().print(shown)
    picture = plot or path.with_suffix(".png")
    draw(results, picture)
    Console().print(f"written: {path}, {picture}", soft_wrap=True)


@bench.command()
def launch(
    workers: Annotated[int, typer.Option(help="Processes to start")] = 2,
    rounds: Annotated[int, typer.Option(help="Every launcher starts once a round; the median counts")] = 5,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-launch-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """How soon workers have torch loaded and found each other: gradtide run, torchrun and, where installed, Ray."""
    from rich.console import Console

    from gradtide.bench import report
    from gradtide.bench.launch import bench_launch, content, show

    path = output or Path("runs") / f"bench-launch-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.check_output(path)
    with Console(stderr=True).status("starting") as status:
        figures = bench_launch(workers, rounds, status.update)
    found = content({"workers": workers, "rounds": rounds}, figures)
    path.write_text(json.dumps(found, indent=2) + "\n")
    if as_json:
        print(json.dumps(found["results"]))
    else:
        show(f"{workers} workers ready, median of {rounds} rounds", figures)
        Console().print(f"written: {path}", soft_wrap=True)
