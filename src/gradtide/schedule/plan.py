"""plan: every strategy compared with the lower bound; the fastest one first."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from gradtide.errors import ConfigError, DeviceError, ScheduleError
from gradtide.schedule.bound import bound
from gradtide.schedule.candidates import Candidate, candidates, seconds_of
from gradtide.schedule.explain import PLAN_HEADS, explain, plan_cells, short_seconds, short_size
from gradtide.schedule.model import Collective, Schedule
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.request import Request
from gradtide.schedule.strategies import STRATEGIES
from gradtide.topology.files import topology_named
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.units import parse_size_bytes
from gradtide.topology.wording import nearest

__all__ = ["Candidate", "Plan", "plan", "request_for", "seconds_of_each"]

MOST_DRAWN_OPS = 50_000  # of a schedule whose rings and trees are drawn one by one


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner found: `table` has the fastest strategy first."""

    request: Request = field(repr=False)
    bound_seconds: float  # no schedule's bytes can move in less
    table: tuple[Candidate, ...]
    skipped: dict[str, str]  # strategies that don't apply here, and why

    @property
    def best(self) -> Candidate:
        return self.table[0]

    def explain(self) -> str:
        """Why the best is the best, in one sentence, and where the next one loses."""
        return explain(self.table, self.bound_seconds)

    @property
    def title(self) -> str:
        """What was asked: all_reduce of 160 MB on dgx1-v100 (8 devices)."""
        request = self.request
        among = f"{len(request.devices)} devices" if len(request.devices) > 4 else ", ".join(request.devices)
        return f"{request.collective} of {short_size(request.size_bytes)} on {request.topology.name} ({among})"

    def left_out(self) -> dict[str, list[str]]:
        """Strategies that don't apply here, by the reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            names.setdefault(reason, []).append(name)
        return names

    def _repr_html_(self) -> str:
        from gradtide.draw.html import html_picture, html_table

        cells = plan_cells(self.table, self.bound_seconds)
        skipped = "; ".join(f"{', '.join(names)}: {why}" for why, names in self.left_out().items())
        notes = [self.explain(), *([f"Left out: {skipped}."] if skipped else [])]
        shown = html_table(PLAN_HEADS, cells, self.title, notes)
        return shown + html_picture(self.draw, f"what {self.best.name} sends over each link")

    def draw(self, path: str | Path, strategy: str | None = None) -> None:
        """Draws what the best strategy (or the named one) sends over each link, to an .svg, .png or .pdf file."""
        from gradtide.draw.topology import draw_topology, is_cluster  # only now: most plans are never drawn
        from gradtide.schedule.predict.rings_and_trees import find_rings_and_trees

        row = self._row(strategy)
        loads: dict[tuple[str, str], float] = defaultdict(float)
        for link, carried in zip(self.request.topology.links, row.simulation.link_bytes, strict=True):
            loads[link.source, link.target] += float(carried)
        note = f"{row.name}: {short_seconds(row.seconds)}, lower bound {short_seconds(self.bound_seconds)}"
        whole = row.op_count <= MOST_DRAWN_OPS and not is_cluster(self.request.topology)
        ways = find_rings_and_trees(row.schedule, self.request.routes) if whole else []
        draw_topology(self.request.topology, Path(path), loads, title=self.title, note=note, ways=ways)

    def timeline(self, path: str | Path, strategy: str | None = None) -> None:
        """Writes when the best strategy (or the named one) uses which link, as JSON for ui.perfetto.dev."""
        from gradtide.draw.timeline import Transfer, write_timeline

        row = self._row(strategy)
        schedule, run = row.schedule, row.simulation
        if len(run.end_s) != len(schedule.ops):  # only one of each class was simulated
            run = simulate(schedule, self.request.topology, self.request.size_bytes)
        transfers = []
        for op, start_s, end_s in zip(schedule.ops, run.moving_s, run.end_s, strict=True):
            route = self.request.routes.find(schedule.ranks[op.src], schedule.ranks[op.dst]) or ()
            links = [(link.source, link.target) for link in route]
            transfers.append(Transfer(f"{op.kind} chunk {op.chunk} (op {op.id})", links, float(start_s), float(end_s)))
        write_timeline(Path(path), transfers, f"{row.name}: {self.title}")

    def _row(self, strategy: str | None) -> Candidate:
        rows = {row.name: row for row in reversed(self.table)}  # of two with one name the faster
        if strategy is not None and strategy not in rows:
            why = f": {self.skipped[strategy]}" if strategy in self.skipped else nearest(strategy, rows)
            raise ScheduleError(f"the plan has no strategy {strategy!r}{why}")
        return self.best if strategy is None else rows[strategy]


def plan(
    topology: Topology | str | Path,
    size: int | str = 0,
    collective: Collective = "all_reduce",
    devices: Sequence[str] | None = None,
    *,
    root: str | None = None,
    rivals: Sequence[Schedule] = (),
    size_bytes: int | None = None,
) -> Plan:
    """Finds the fastest way to synchronise `size` bytes between devices of a topology.

    `topology` is a preset's name or a file. `size` is a number of bytes, or a text such as "160MB". `devices` are all
    of the topology's by default. `root` is the device that broadcast starts from and reduce ends at, by default the
    first. `rivals` are schedules of your own, which are proven, predicted and compared, too.

    >>> plan("pcie-4gpu", "160MB").best.bandwidth_seconds <= 0.015
    True
    """
    if size_bytes is not None:  # the old name goes with 0.3.0
        warnings.warn("gradtide.plan(size_bytes=...) is written size=... now", DeprecationWarning, stacklevel=2)
        size = size_bytes
    wanted_bytes = parse_size_bytes(size) if isinstance(size, str) else size
    request = request_for(topology, wanted_bytes, collective, devices, root)
    lower = bound(request).seconds
    for rival in rivals:
        _check_fits(rival, request)
    table, skipped = candidates(request, lower, rivals)
    if not table:
        raise ScheduleError(f"no strategy applies: {'; '.join(f'{name}: {why}' for name, why in skipped.items())}")
    # Rounding must not decide: what is equally fast stands in the order of simplicity.
    table.sort(key=lambda row: (float(f"{row.seconds:.9g}"), row.steps, row.op_count, row.name))
    return Plan(request, lower, tuple(table), skipped)


def request_for(
    topology: Topology | str | Path,
    size_bytes: int,
    collective: Collective = "all_reduce",
    devices: Sequence[str] | None = None,
    root: str | None = None,
) -> Request:
    """The request that these arguments make, or an error that says which of them makes no sense."""
    wired = topology if isinstance(topology, Topology) else topology_named(str(topology))
    if size_bytes < 1:
        raise ConfigError(f"the size must be at least one byte, not {size_bytes}")
    if collective not in get_args(Collective):
        raise ConfigError(f"no collective is called {collective!r}; known are {', '.join(get_args(Collective))}")
    chosen = _devices(wired, devices)
    if root is not None and collective not in ("broadcast", "reduce"):
        raise ConfigError(f"{collective} has no root; leave it out, or ask for broadcast or reduce")
    if root is not None and root not in chosen:
        raise DeviceError(f"the root {root!r} is not among the devices {', '.join(chosen)}")
    return Request(wired, chosen, size_bytes, collective, chosen.index(root) if root else 0)


def _devices(topology: Topology, asked: Sequence[str] | None) -> tuple[str, ...]:
    known = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    chosen, there = tuple(known if asked is None else asked), set(known)
    for name in chosen:
        if name not in there:
            raise DeviceError(f"{topology.name} has no device {name!r}; its devices are {', '.join(known[:20])}")
    if len(set(chosen)) < max(2, len(chosen)):
        raise DeviceError(f"a collective needs two or more different devices, not {', '.join(chosen) or 'none'}")
    return chosen


def _check_fits(schedule: Schedule, request: Request) -> None:
    """Whether a schedule that came from elsewhere serves this request, on nodes of this topology."""
    name = schedule.name
    if schedule.collective != request.collective:
        raise ScheduleError(f"{name}: is a schedule of {schedule.collective}, but {request.collective} is asked for")
    if set(schedule.ranks[: schedule.contributors]) != set(request.devices):
        raise ScheduleError(f"{name}: must have the devices {', '.join(request.devices)} as its first ranks")
    able = {node.name for node in request.topology.nodes if node.kind in (NodeKind.DEVICE, NodeKind.HOST)}
    for rank in schedule.ranks:
        if rank not in able:
            raise ScheduleError(f"{name}: {rank!r} is no device or host of {request.topology.name}, so can't add up")


def seconds_of_each(request_of: Callable[[int], Request], sizes: Sequence[int]) -> dict[str, list[float]]:
    """Predicted seconds of every strategy for every size; infinite where it does not apply."""
    seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for size_bytes in sizes:
        request = request_of(size_bytes)
        resources = Resources(request.topology, request.routes)
        for name in STRATEGIES:
            seconds[name].append(seconds_of(request, resources, name))
    return {name: times for name, times in seconds.items() if min(times) < float("inf")}
