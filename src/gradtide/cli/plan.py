"""gradtide plan: which synchronisation is best on these links, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.errors import ConfigError, OutputError, ScheduleError

if TYPE_CHECKING:
    from gradtide.schedule.model import Schedule
    from gradtide.schedule.plan import Plan

__all__ = ["plan"]


def plan(
    topology: Annotated[str, typer.Argument(help="A preset (see `gradtide topology list`) or a file.")],
    size: Annotated[str, typer.Option(help="Bytes to synchronise: 160MB, 4KiB, …")] = "",
    collective: Annotated[
        str, typer.Option(help="all_reduce, reduce_scatter, all_gather, broadcast or reduce.")
    ] = "all_reduce",
    devices: Annotated[str, typer.Option(help="Only these devices: gpu1,gpu2,gpu3.")] = "",
    root: Annotated[
        str, typer.Option(help="Where broadcast starts and reduce ends; the first device if left out.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    draw: Annotated[Path | None, typer.Option(help="Draw the winner's traffic on the links: plan.svg.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write the winner's run for Perfetto: trace.json.")] = None,
    schedule: Annotated[Path | None, typer.Option(help="Save the winner's schedule: schedule.json.")] = None,
    rival: Annotated[Path | None, typer.Option(help="Prove and compare this schedule too: mine.json.")] = None,
    sizes: Annotated[str, typer.Option(help="Show which strategy wins from which size on: 4KB..1GB.")] = "",
    output: Annotated[Path | None, typer.Option(help="With --sizes: draw the times over sizes, sizes.png.")] = None,
) -> None:
    """Choose, prove and predict the best synchronisation for a topology."""
    if bool(size) == bool(sizes):
        raise ConfigError("plan needs either --size, as 160MB, or --sizes, as 4KB..1GB")
    if output and not sizes:
        raise ConfigError("--output is the plot of --sizes; --draw draws the traffic of one size")
    if sizes and (draw or timeline or schedule or rival):
        raise ConfigError("--draw, --timeline, --schedule and --rival go with one size; give --size, not --sizes")
    asked = [name.strip() for name in devices.split(",")] if devices else None
    if sizes:
        from gradtide.cli.plan_sizes import show_sizes

        show_sizes(topology, sizes, (collective, asked, root or None), json, output)
        return
    found = _find(topology, size, (collective, asked, root or None), rival)
    _print_json(found) if json else _print_table(found)
    for path, write in ((draw, _draw), (timeline, _write_timeline), (schedule, _save)):
        if path:
            write(found, path)


def _find(topology: str, size: str, asked: tuple[Any, ...], rival: Path | None) -> "Plan":
    from gradtide.schedule.plan import plan as find_plan
    from gradtide.topology.units import parse_size_bytes

    collective, devices, root = asked
    rivals = [_read_schedule(rival)] if rival else []
    return find_plan(topology, parse_size_bytes(size), collective, devices, root=root, rivals=rivals)


def _read_schedule(path: Path) -> "Schedule":
    """The schedule in a file, under the file's name: so that errors and the table say where it came from."""
    from dataclasses import replace

    from gradtide.schedule.serialize import MAX_JSON_BYTES, schedule_from_json

    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)  # no more than that, however large the file is
    except OSError as error:
        raise ScheduleError(f"can't read a schedule from {path}: {error.strerror}") from None
    return replace(schedule_from_json(data, str(path)), name=path.name)


def _print_json(found: "Plan") -> None:
    import json

    request = found.request
    fields = ("name", "seconds", "bandwidth_seconds", "ratio", "busiest_link", "wire_bytes", "steps")
    data = {
        "topology": request.topology.name,
        "collective": request.collective,
        "size_bytes": request.size_bytes,
        "devices": request.devices,
        "bound_seconds": found.bound_seconds,
        "strategies": [{name: getattr(row, name) for name in fields} for row in found.table],
        "skipped": [{"name": name, "reason": reason} for name, reason in found.skipped.items()],
        "why": found.explain(),
    }
    typer.echo(json.dumps(data, indent=2))


def _print_table(found: "Plan") -> None:
    from rich.console import Console
    from rich.table import Table

    from gradtide.schedule.explain import short_seconds, short_size

    table = Table(title=_title(found), title_justify="left", box=None, padding=(0, 1), title_style="bold")
    table.add_column("strategy", no_wrap=True)
    for head in ("time", "bandwidth", "× bound"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("busiest link", no_wrap=True)
    for head in ("on the wire", "steps"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.table:
        times = (short_seconds(row.seconds), short_seconds(row.bandwidth_seconds), f"{row.ratio:.3f}")
        best = "bold green" if row is found.best else None
        table.add_row(row.name, *times, row.busiest_link, short_size(row.wire_bytes), str(row.steps), style=best)
    table.add_row("lower bound", "", short_seconds(found.bound_seconds), "1.000", "", "", "", style="dim")
    console = Console()
    console.width = max(console.width, 100)  # a table that is cut says nothing; a terminal can wrap it
    console.print(table)
    console.print(f"\n{found.explain()}", soft_wrap=True, highlight=False)
    for name, reason in found.skipped.items():
        console.print(f"{name} does not apply: {reason}.", soft_wrap=True, highlight=False, style="dim")


def _title(found: "Plan") -> str:
    from gradtide.schedule.explain import short_size

    request = found.request
    among = f"{len(request.devices)} devices" if len(request.devices) > 4 else ", ".join(request.devices)
    return f"{request.collective} of {short_size(request.size_bytes)} on {request.topology.name} ({among})"


def _draw(found: "Plan", path: Path) -> None:
    from gradtide.schedule.draw import draw_topology
    from gradtide.schedule.explain import short_seconds

    loads: dict[tuple[str, str], float] = {}
    for link, carried in zip(found.request.topology.links, found.best.simulation.link_bytes, strict=True):
        loads[link.source, link.target] = loads.get((link.source, link.target), 0.0) + float(carried)
    note = f"{found.best.name}: {short_seconds(found.best.seconds)}, lower bound {short_seconds(found.bound_seconds)}"
    draw_topology(found.request.topology, path, loads, title=_title(found), note=note)


def _write_timeline(found: "Plan", path: Path) -> None:
    from gradtide.schedule.timeline import Span, write_timeline

    schedule, run, find = found.best.schedule, found.best.simulation, found.request.routes.find
    spans = []
    for op, start_s, end_s in zip(schedule.ops, run.moving_s, run.end_s, strict=True):
        route = find(schedule.ranks[op.src], schedule.ranks[op.dst]) or ()
        links = [(link.source, link.target) for link in route]
        spans.append(Span(f"{op.kind} chunk {op.chunk} (op {op.id})", links, float(start_s), float(end_s)))
    write_timeline(path, spans, f"{found.best.name}: {_title(found)}")


def _save(found: "Plan", path: Path) -> None:
    from gradtide.schedule.serialize import schedule_to_json

    try:
        path.write_text(schedule_to_json(found.best.schedule), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write the schedule to {path}: {error.strerror}; name another file") from None
