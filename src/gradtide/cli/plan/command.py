"""gradtide plan: which synchronisation is best on these links, and why.

Its options are argparse's: the other commands' library loads pydantic for any option at all, a fifth of the second in
which a plan should be there.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradtide.errors import ConfigError, OutputError, ScheduleError

if TYPE_CHECKING:
    from gradtide.cli.plan.step import StepAsked
    from gradtide.compress import Compress
    from gradtide.schedule.model import Schedule
    from gradtide.schedule.plan import Plan
    from gradtide.schedule.predict.smaller_messages import CompressForecast
    from gradtide.topology.model import Topology

__all__ = ["OPTIONS", "SUMMARY", "TOPOLOGY", "plan"]

TOPOLOGY = "A preset (see gradtide topology list) or a file; --speeds alone needs none"
SUMMARY = "Choose, prove and predict the best synchronisation for a topology."
OPTIONS: tuple[tuple[str, type, str], ...] = (
    ("--size", str, "Bytes to synchronise: 160MB, 4KiB, …"),
    ("--collective", str, "all_reduce (if left out), reduce_scatter, all_gather, broadcast or reduce"),
    ("--devices", str, "Only these devices: gpu1,gpu2,gpu3"),
    ("--root", str, "Where broadcast starts and reduce ends; the first device if left out"),
    ("--json", bool, "Print the table as JSON"),
    ("--draw", Path, "Draw the winner's traffic on the links: plan.svg"),
    ("--timeline", Path, "Write the winner's run for Perfetto: trace.json"),
    ("--schedule", Path, "Save the winner's schedule: schedule.json"),
    ("--rival", Path, "Prove and compare this schedule too: mine.json"),
    ("--sizes", str, "Show which strategy wins from which size on: 4KB..1GB"),
    ("--output", Path, "With --sizes or --hosts: draw the times, sizes.png"),
    ("--without", list, "What if this were missing: host3.nic0, host3, spine*; may be given several times"),
    ("--degrade", list, "What if this had N times its bandwidth: host3.nic0=0.1; may be given several times"),
    ("--hosts", str, "Show the time for each number of hosts: 4..128; --output draws it"),
    ("--upgrade", bool, "Also say which wires to make faster first, and what that is worth"),
    ("--host-kind", str, "What the hosts of Slurm's topology.conf are: dgx-h100, dgx-a100, …"),
    ("--every", str, "Also say how long a step takes when workers meet every N steps: 50"),
    ("--compute", str, "Time of a step's forward and backward, for --every and --speeds: 30ms"),
    ("--no-overlap", bool, "With --every: gradients leave after backward, not while it goes on"),
    ("--compress", str, "Also say what a codec saves: int8, topk:0.01, …"),
    ("--speeds", str, "Also say what parts of a batch by speed save; one speed for each device: 1,1,0.3"),
    ("--batch", str, "With --speeds: the samples of a batch; parts are whole samples"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{_mistake(message)}; see gradtide plan -h")

    def format_help(self) -> str:
        from gradtide.cli.plan.completion import help_text  # of the other commands' library, so that all look alike

        return help_text()


def _mistake(message: str) -> str:
    """What argparse has found, in the words that all commands have."""
    from gradtide.calling import meant

    what, _, words = message.partition(": ")
    if what == "unrecognized arguments":
        word = words.split()[0]
        if word.startswith("-"):
            return f"no such option {word}{meant(word, [name for name, *_ in OPTIONS])}"
        return f"got unexpected extra arguments ({words})"
    if words == "expected one argument":
        return f"{what.removeprefix('argument ')} needs a value"
    if words.startswith("ignored explicit argument"):
        return f"{what.removeprefix('argument ')} takes no value"
    return f"{what.removeprefix('argument ')}: {words}" if words else message


def parser() -> _Parser:
    parser = _Parser("gradtide plan", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("topology", nargs="?")
    for name, kind, _ in OPTIONS:
        if kind is list:
            parser.add_argument(name, action="append", default=[])
        elif kind is bool:
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=kind)
    return parser


def plan(arguments: Sequence[str]) -> None:
    """The command, with the words that follow `gradtide plan`."""
    from gradtide.cli.table import tell_written

    asked = parser().parse_args(arguments)
    step = _step_asked(asked)
    compress = _compress_asked(asked)
    if step is not None and not asked.topology:
        _print_step(step, as_json=asked.json)
        return
    if not asked.topology:
        raise ConfigError("TOPOLOGY is missing: a preset or a file; see gradtide plan -h")
    if bool(asked.size) == bool(asked.sizes):
        if not asked.hosts:
            _wired(asked)  # an unknown name is said first: a size would not help
        raise ConfigError("plan needs either --size, as 160MB, or --sizes, as 4KB..1GB")
    _check_together(asked, step, compress)
    devices = [name.strip() for name in asked.devices.split(",")] if asked.devices else None
    among = (asked.collective or "all_reduce", devices, asked.root or None)
    if asked.hosts:
        from gradtide.cli.plan.hosts import show_hosts

        show_hosts(asked, among)
        return
    topology = _wired(asked)
    if asked.sizes:
        from gradtide.cli.plan.sizes import show_sizes

        show_sizes(topology, asked.sizes, among, asked.json, asked.output)
        return
    found = _find(topology, asked.size, among, asked.rival)
    more = _PlanExtras(step, _forecast_compression(compress, found, topology), _upgrades(asked, found))
    if asked.draw:
        found.draw(asked.draw)
    if asked.timeline:
        found.timeline(asked.timeline)
    if asked.schedule:
        _save(found, asked.schedule)
    _print(found, more, as_json=asked.json)  # after the files: who reads it may stop at any line
    tell_written(asked.draw, asked.timeline, asked.schedule, as_data=asked.json)


def _check_together(asked: argparse.Namespace, step: "StepAsked | None", compress: "Compress | None") -> None:
    if asked.output and not (asked.sizes or asked.hosts):
        raise ConfigError("--output is the plot of --sizes or --hosts; --draw draws the traffic of one size")
    several = "--sizes" if asked.sizes else "--hosts"
    if (asked.sizes or asked.hosts) and (asked.draw or asked.timeline or asked.schedule or asked.rival):
        raise ConfigError(
            f"--draw, --timeline, --schedule and --rival go with one size and one cluster; leave {several} out"
        )
    if asked.upgrade and (asked.sizes or asked.hosts):
        raise ConfigError(f"--upgrade goes with one plan; leave {several} out")
    if asked.hosts and (asked.sizes or asked.devices or asked.root or step or compress):
        raise ConfigError("--hosts goes with --size, --collective, --without, --degrade, --json and --output alone")
    for picture in filter(None, (asked.draw, asked.output)):  # before a plan is made that could not be drawn
        from gradtide.draw.save import check_path

        check_path(picture)


def _wired(asked: argparse.Namespace) -> "Topology":
    """What the topology and the what-ifs name."""
    from gradtide.topology.files import topology_named
    from gradtide.topology.what_if import altered

    return altered(topology_named(asked.topology, host_kind=asked.host_kind), asked.without, asked.degrade)


def _upgrades(asked: argparse.Namespace, found: "Plan") -> "dict[str, float] | None":
    if not asked.upgrade:
        return None
    from gradtide.schedule.upgrade import worth_of_each

    return worth_of_each(found.request)


def _find(topology: "Topology", size: str, asked: tuple[Any, ...], rival: Path | None) -> "Plan":
    from gradtide.schedule.plan import plan as find_plan

    collective, devices, root = asked
    rivals = [_read_schedule(rival)] if rival else []
    return find_plan(topology, size, collective, devices, root=root, rivals=rivals)


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


def _step_asked(asked: argparse.Namespace) -> "StepAsked | None":
    """What is asked of a whole step. Most plans are asked for none of it."""
    if not any((asked.every, asked.compute, asked.no_overlap, asked.speeds, asked.batch)):
        return None
    from gradtide.cli.plan.step import StepAsked, check_step

    step = StepAsked.of(asked)
    if step is not None:
        check_step(step, asked)
    return step


def _compress_asked(asked: argparse.Namespace) -> "Compress | None":
    if not asked.compress:
        return None
    from gradtide.cli.plan.smaller import check_compress  # brings in numba

    return check_compress(asked)


def _forecast_compression(
    compress: "Compress | None", found: "Plan", topology: "Topology"
) -> "CompressForecast | None":
    if compress is None:
        return None
    from gradtide.cli.plan.smaller import forecast_compression

    return forecast_compression(compress, found, topology)


@dataclass(frozen=True, slots=True)
class _PlanExtras:
    """What was asked for beside the plan itself."""

    step: "StepAsked | None"
    smaller: "CompressForecast | None"
    upgrades: "dict[str, float] | None"


def _print(found: "Plan", more: _PlanExtras, *, as_json: bool) -> None:
    from gradtide.cli.plan.table import json_text, table_text

    data: dict[str, Any] = {}
    blocks = [] if as_json else [table_text(found)]
    if more.step is not None:
        from gradtide.cli.plan.step import as_data, step_text

        data |= as_data(more.step, found)
        blocks.append(step_text(more.step, found))
    if more.smaller is not None:
        from gradtide.cli.plan.smaller import as_data as compress_data
        from gradtide.cli.plan.smaller import compress_text

        data |= compress_data(more.smaller)
        blocks.append(compress_text(more.smaller))
    if more.upgrades is not None:
        from gradtide.schedule.upgrade import upgrade_text

        data["upgrades"] = more.upgrades
        blocks.append(upgrade_text(more.upgrades))
    print(json_text(found, data) if as_json else "\n\n".join(blocks))


def _print_step(step: "StepAsked", *, as_json: bool) -> None:
    """Without a topology."""
    import json

    from gradtide.cli.plan.step import as_data, step_text

    print(json.dumps(as_data(step, None), indent=2) if as_json else step_text(step, None))


def _save(found: "Plan", path: Path) -> None:
    from gradtide.schedule.serialize import schedule_to_json

    try:
        path.write_text(schedule_to_json(found.best.schedule), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write the schedule to {path}: {error.strerror}; name another file") from None
