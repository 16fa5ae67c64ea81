"""`gradtide topology`: lists, shows, checks and probes topologies."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.help import Commands
from gradtide.cli.table import print_table, tell_written

if TYPE_CHECKING:
    from gradtide.topology.model import Topology
    from gradtide.topology.rates import WireRates

__all__ = ["app"]

app = typer.Typer(
    cls=Commands, help="List, show, check and measure topologies.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Nvlink = Annotated[str, typer.Option(help="Bandwidth of one NVLink in each direction, for nvidia-smi text.")]
Pcie = Annotated[str, typer.Option(help="Bandwidth of a PCIe port in each direction, for nvidia-smi text.")]


HostKind = Annotated[str | None, typer.Option(help="What the hosts of Slurm's topology.conf are: dgx-h100, …")]
MOST_SHOWN = 64  # devices: beyond that a table by kinds says more than a row for each node


@app.command("list")
def list_presets(as_json: Json = False) -> None:
    """List the topologies known by name."""
    from gradtide.topology.presets import PRESETS, preset

    rows = []
    for known in PRESETS:
        example = preset(known.example)
        devices = sum(node.kind == "device" for node in example.nodes)
        rows.append({"name": known.form, "example": known.example, "devices": devices, "summary": known.summary})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    print_table(("name", "what it is"), [[row["name"], row["summary"]] for row in rows])


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A preset, a TOML file, saved `nvidia-smi topo -m` output, Slurm's topology.conf, …")
    ],
    as_json: Json = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the TOML file that describes it.")] = False,
    draw: Annotated[Path | None, typer.Option(help="Draw it to this .svg, .png or .pdf file.")] = None,
    nvlink: Nvlink = "25 GB/s",
    pcie: Pcie = "16 GB/s",
    host_kind: HostKind = None,
    every: Annotated[bool, typer.Option("--all", help="Show every node and link, however many there are.")] = False,
) -> None:
    """Show the nodes and links of a topology; of a large cluster by kinds, with counts."""
    from gradtide.errors import ConfigError
    from gradtide.topology.files import topology_named

    if as_json and toml:
        raise ConfigError("give --json or --toml, not both")
    topology = topology_named(name, _rates(nvlink, pcie), host_kind)
    if draw:
        from gradtide.draw import draw_topology

        draw_topology(topology, draw)
    if toml:
        from gradtide.topology.files import toml_of

        typer.echo(toml_of(topology), nl=False)
    elif as_json:
        typer.echo(json.dumps(_as_json(topology), indent=2))
    elif not every and _counts(topology)["device"] > MOST_SHOWN:
        _print_kinds(topology)
    else:
        _print_topology(topology)
    tell_written(draw, as_data=toml or as_json)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A TOML file, saved `nvidia-smi topo -m` output, topology.conf, …")],
    as_json: Json = False,
    host_kind: HostKind = None,
) -> None:
    """Check whether a file describes a topology; names the first mistake with its line and field."""
    from gradtide.topology.files import read_topology

    topology = read_topology(file, host_kind=host_kind)
    counts = _counts(topology)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "name": topology.name, "links": len(topology.links), **counts}))
        return
    there = ", ".join(f"{count} {kind}{'' if count == 1 else _plural(kind)}" for kind, count in counts.items() if count)
    typer.echo(f"{file}: fine ({there}, {len(topology.links)} one-way links)")


@app.command()
def probe(
    processes: Annotated[int, typer.Option(help="How many processes to measure between.")] = 2,
    output: Annotated[Path | None, typer.Option(help="Write the topology to this TOML file.")] = None,
    seconds: Annotated[float, typer.Option(help="How long the transfers may take together.")] = 4.0,
    job: Annotated[
        bool,
        typer.Option("--job", help="Measure between the ranks of a launcher's job: torchrun -m gradtide ..."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure latency and bandwidth between processes of this machine, or between the ranks of a job."""
    from gradtide.errors import ConfigError
    from gradtide.linux import require_linux
    from gradtide.topology.files import write_topology
    from gradtide.topology.probe.machine import probe_machine

    require_linux("gradtide topology probe")
    if not 0 < seconds <= 600:
        raise ConfigError(f"--seconds must be above 0 and at most 600, not {seconds:g}")
    topology = _probe_job(seconds) if job else probe_machine(processes, budget_s=seconds)
    if topology is None:
        return
    if output:
        write_topology(topology, output)
    if as_json:
        typer.echo(json.dumps(_as_json(topology), indent=2))
    else:
        _print_topology(topology)
        if output:
            typer.echo(f"written to {output}; try: gradtide plan {output} --size 16MB")


def _probe_job(seconds: float) -> "Topology | None":
    """Every rank takes part; the first one gets the result to show."""
    from gradtide.collective import Group
    from gradtide.environment import read_environment
    from gradtide.errors import ConfigError

    if read_environment().launch is None:
        raise ConfigError("RANK is not set; start with torchrun, or use Group.join(name, rank, size)")
    with Group.from_environment() as group:
        topology = group.probe(seconds)
        return topology if group.rank == 0 else None


def _rates(nvlink: str, pcie: str) -> "WireRates":
    from gradtide.topology.rates import WireRates
    from gradtide.topology.units import parse_bytes_per_s

    return WireRates(nvlink=parse_bytes_per_s(nvlink), pcie=parse_bytes_per_s(pcie))


def _counts(topology: "Topology") -> dict[str, int]:
    from gradtide.topology.model import NodeKind

    return {str(kind): sum(node.kind is kind for node in topology.nodes) for kind in NodeKind}


def _plural(kind: str) -> str:
    return "es" if kind.endswith("h") else "s"


def _as_json(topology: "Topology") -> dict[str, Any]:
    from dataclasses import asdict

    nodes, links = [asdict(node) for node in topology.nodes], [asdict(link) for link in topology.links]
    return {"name": topology.name, "nodes": nodes, "links": links}


def _print_topology(topology: "Topology") -> None:
    from gradtide.topology.units import format_bytes_per_s, format_seconds

    print_table(("node", "kind", "machine"), [[n.name, n.kind, n.machine] for n in topology.nodes])
    typer.echo()
    rows = []
    for link, arrow in _paired(topology):
        rate = f"{link.count} × " if link.count > 1 else ""
        rate += format_bytes_per_s(link.bytes_per_s)
        rows.append([f"{link.source} {arrow} {link.target}", rate, format_seconds(link.latency_s), link.wire])
    headings = ("link", "bandwidth", "latency", "shared wire")
    shown = len(headings) if any(row[-1] for row in rows) else len(headings) - 1
    print_table(headings[:shown], [row[:shown] for row in rows])


def _print_kinds(topology: "Topology") -> None:
    """Nodes and wires by kinds: 256 GPUs are one row."""
    from collections import Counter

    from gradtide.topology.kinds import name_kind, wire_kind
    from gradtide.topology.units import format_bytes_per_s, format_seconds

    machines = {node.machine for node in topology.nodes if node.machine}
    typer.echo(f"{topology.name}: {len(machines):,} machines; --all shows every node and link")
    nodes = Counter((name_kind(node.name), str(node.kind)) for node in topology.nodes)
    print_table(("nodes", "kind", "how many"), [[name, kind, f"{count:,}"] for (name, kind), count in nodes.items()])
    typer.echo()
    wires = Counter((wire_kind(link), link.count, link.bytes_per_s, link.latency_s) for link in topology.links)
    rows = []
    for (kind, count, rate, latency_s), many in wires.items():
        times = f"{count} × " if count > 1 else ""
        rows.append([kind, f"{times}{format_bytes_per_s(rate)}", format_seconds(latency_s), f"{many:,}"])
    print_table(("one-way links", "bandwidth", "latency", "how many"), rows)


def _paired(topology: "Topology") -> list[tuple[Any, str]]:
    """Each link with its arrow; two that differ in nothing but their direction are one row."""
    from dataclasses import replace

    left = dict.fromkeys(topology.links)
    rows = []
    for link in topology.links:
        if link not in left:
            continue  # the way back of one before
        del left[link]
        back = replace(link, source=link.target, target=link.source)
        rows.append((link, "↔" if back in left else "→"))
        left.pop(back, None)
    return rows
