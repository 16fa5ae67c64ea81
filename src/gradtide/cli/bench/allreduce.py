"""`gradtide bench allreduce`: collectives against Gloo and MPI."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.bench.common import print_results, results_path, say_written, telling
from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.bench.allreduce import Mpi
    from gradtide.bench.hosts.collectives import HostsWire

__all__ = ["allreduce"]

_OURS = ("gradtide", "gradtide, torch.distributed")


def allreduce(
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes on this host, or on each of several  [default: 2, or 1]", show_default=False),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Sizes, with commas")] = "4KiB,64KiB,1MiB,16MiB,64MiB,160MiB",
    rounds: Annotated[int, typer.Option(help="Every contender takes one turn in each round; the median counts")] = 7,
    mpi_python: Annotated[
        list[str] | None, typer.Option(help="A Python that has mpi4py; once for each MPI  [default: this one]")
    ] = None,
    hosts: Annotated[int, typer.Option(help="Number of hosts: network namespaces, as root  [0: this one]")] = 0,
    rate: Annotated[int, typer.Option(help="Rate of each host's wire, in Mbit/s  [0: unlimited]")] = 0,
    operations: Annotated[
        str, typer.Option(help="Between hosts: collectives to measure, with commas, or all")
    ] = "all_reduce",
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-allreduce-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """All-reduce on shared and on ordinary tensors against Gloo and, where mpi4py is installed, MPI."""
    from gradtide.bench import report
    from gradtide.bench.allreduce import bench_allreduce, find_mpi
    from gradtide.bench.hosts.collectives import OPERATIONS, HostsWire
    from gradtide.topology.units import parse_size_bytes

    path = results_path("allreduce", output)
    wanted = [parse_size_bytes(size) for size in sizes.split(",")]
    mpis = find_mpi(mpi_python or ())
    if hosts:
        chosen = list(OPERATIONS) if operations == "all" else operations.split(",")
        return _between_hosts(path, HostsWire(hosts, rate, ranks or 1), chosen, wanted, rounds, mpis, as_json)
    ranks = ranks or 2
    with telling("starting the contenders") as tell:
        figures = bench_allreduce(ranks, wanted, rounds, mpis, tell)
    report.write(path, figures, {"settings": {"ranks": ranks, "sizes": wanted, "rounds": rounds}})
    if as_json:
        return print_results(figures)
    rows = []
    for figure in figures:
        times = [f"{1e6 * seconds:,.1f}" for seconds in (figure.seconds, figure.seconds_min, figure.seconds_max)]
        rows.append((f"{figure.size_bytes:,}", figure.name, *times, f"{figure.ratio:.2f}"))
    title = f"all-reduce between {ranks} ranks, median of {rounds} rounds"
    print_table(("bytes", "", "µs", "min", "max", "x fastest peer"), rows, title)
    return say_written(path)


def _between_hosts(
    path: Path,
    wire: "HostsWire",
    operations: list[str],
    sizes: list[int],
    rounds: int,
    mpis: "list[Mpi]",
    as_json: bool,
) -> None:
    from gradtide.bench import report
    from gradtide.bench.hosts.collectives import PREDICTED, bench_between_hosts

    with telling("starting the contenders") as tell:
        figures = bench_between_hosts(wire, operations, sizes, rounds, mpis, tell)
    settings = {"hosts": wire.hosts, "ranks": wire.ranks, "rate_mbit": wire.rate_mbit, "sizes": sizes, "rounds": rounds}
    report.write(path, figures, {"settings": settings})
    if as_json:
        return print_results(figures)
    rows, names = [], list(dict.fromkeys(figure.name for figure in figures))
    for operation, size_bytes in dict.fromkeys((figure.operation, figure.size_bytes) for figure in figures):
        found = {f.name: f.seconds for f in figures if (f.operation, f.size_bytes) == (operation, size_bytes)}
        times = [f"{1e3 * found[name]:,.3f}" for name in names]
        ratios = [f"{found[name] / found['gradtide']:.2f}" for name in names if name not in (*_OURS, PREDICTED)]
        rows.append((operation, f"{size_bytes:,}", *times, *ratios))
    title = (
        f"{wire.hosts} hosts, {wire.ranks} rank(s) on each, wires {wire.rate or 'as they are'}, ms, "
        f"median of {rounds} rounds"
    )
    peers = [f"x {name}" for name in names if name not in (*_OURS, PREDICTED)]
    print_table(("", "bytes", *names, *peers), rows, title)
    return say_written(path)
