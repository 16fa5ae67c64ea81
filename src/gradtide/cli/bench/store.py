"""`gradtide bench store`: push_pull against a bare pair of sockets, copy_, Redis and a Ray actor."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["store"]


def store(
    sizes: Annotated[str, typer.Option(help="Sizes of a push_pull, with commas")] = "4KiB,64KiB,1MiB,16MiB",
    workers: Annotated[int, typer.Option(help="Workers at once")] = 1,
    servers: Annotated[int, typer.Option(help="Servers that share the keys")] = 1,
    replicas: Annotated[int, typer.Option(help="Also measure gradtide with N replicas; needs more servers")] = 0,
    idle: Annotated[int, typer.Option(help="Also measure gradtide with N idle sockets for each server")] = 0,
    tls: Annotated[
        bool, typer.Option("--tls", help="Also measure gradtide over loopback TCP, without and with TLS")
    ] = False,
    placement: Annotated[
        str, typer.Option(help="any; apart or together: the two ends of every contender on two processors, or on one")
    ] = "any",
    rounds: Annotated[int, typer.Option(help="Every contender runs once in each round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="push_pulls of 4 KB in a round; fewer of larger ones")] = 500,
    with_curve: Annotated[
        bool, typer.Option("--curve", help="Also compare m workers over n servers with the simulated curve")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-store-TIME.json]")] = None,
) -> None:
    """push_pull against a bare pair of sockets, torch's copy_, and Redis and a Ray actor where they are installed."""
    from gradtide.bench import report
    from gradtide.bench.store import StoreCase, bench_store, curve
    from gradtide.topology.units import parse_size_bytes

    chosen = [parse_size_bytes(size) for size in sizes.split(",")]
    path = results_path("store", output)
    results, points = [], []
    with telling("starting the contenders") as tell:
        for size in chosen:
            case = StoreCase(size, workers, servers, placement, replicas, idle, tls)
            results += bench_store(case, rounds, max(3, min(steps, steps * 65536 // size)), tell)
        if with_curve:
            points = curve(chosen[-1], rounds, 5, tell)
    rows = []
    for row in results:
        times = [f"{1e6 * seconds:,.0f}" for seconds in (row.seconds, row.seconds_min, row.seconds_max)]
        rows.append(
            (f"{row.case.size_bytes:,}", row.name, *times, f"{row.to_bare:.2f}", f"{row.bytes_per_s / 1e9:.2f}")
        )
    title = f"push_pull, {workers} workers, {servers} servers, placed {placement}, median of {rounds} rounds"
    print_table(("bytes", "", "µs", "min", "max", "x bare pair", "GB/s"), rows, title)
    if points:
        found = [(p.workers, p.servers, f"{1e3 * p.measured_s:.1f}", f"{1e3 * p.simulated_s:.1f}") for p in points]
        print_table(("workers", "servers", "measured ms", "simulated ms"), found)
    report.write(path, results, after={"curve": [asdict(point) for point in points]})
    say_written(path)
