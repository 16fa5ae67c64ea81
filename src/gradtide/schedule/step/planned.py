"""plan_split: the layouts of a model on some devices, the best few simulated, proven and compared; fastest first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from gradtide.errors import ConfigError, ScheduleError
from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.step.build import ORDERS, build_step
from gradtide.schedule.step.choice.bound import least_seconds
from gradtide.schedule.step.choice.candidates import interleaved, plain_layouts
from gradtide.schedule.step.choice.figures import figures_of
from gradtide.schedule.step.choice.memory_limits import least_bytes
from gradtide.schedule.step.choice.mixed import mixed_halves
from gradtide.schedule.step.choice.wires import StepDevices
from gradtide.schedule.step.choice.wording import SPLIT_HEADS, explain_split, layout_text, split_cells
from gradtide.schedule.step.costs import ModelCosts
from gradtide.schedule.step.files import save_layout
from gradtide.schedule.step.layout import Layout, Order
from gradtide.schedule.step.model import StepPlan
from gradtide.schedule.step.predict import StepSimulation, simulate_step
from gradtide.schedule.step.proof import verify_step
from gradtide.schedule.step.search import Found, LayoutSearch, SplitWishes
from gradtide.schedule.step.shaping import shape_of
from gradtide.topology.files import topology_named
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.units import parse_size_bytes
from gradtide.topology.wording import nearest

__all__ = [
    "MEMORY_COPY",
    "SplitPlan",
    "SplitRow",
    "one_host",
    "plan_split",
    "row_of",
    "row_of_plan",
    "split_devices",
    "split_wishes",
]

FEW = 6  # layouts that are simulated, beside those that do one thing alone
CLOSE = (
    1.02  # a prediction is not worth more than that: copies alone, the simplest layout, are taken if they come so close
)
MOST_TASKS = 20_000  # that are simulated, of all steps together but for the best by closed form
MEMORY_COPY = 10e9  # bytes a second between the devices of one process, where nothing else is known


@dataclass(frozen=True, slots=True)
class SplitRow:
    """One layout that was looked at: proven, and simulated on the wires."""

    name: str  # "copies alone", ..., or of those that mix them the layout in words
    text: str  # the layout in words
    layout: Layout = field(repr=False)
    seconds: float
    closed_form_s: float
    device_bytes: float  # of the device that needs most
    bubble: float  # the share of all devices' time in which nothing is computed
    synchronisations: int  # sums and exchanges in a step: what several devices do together
    busiest_link: str
    busiest_seconds: float
    ratio: float  # seconds over the lower bound
    plan: StepPlan = field(repr=False)
    simulation: StepSimulation = field(repr=False)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What the planner found: `table` has the fastest layout first."""

    costs: ModelCosts = field(repr=False)
    devices: StepDevices = field(repr=False)
    bound_seconds: float  # no layout's step takes less
    table: tuple[SplitRow, ...]
    skipped: dict[str, str]  # what was not taken, and why
    bytes_on: dict[int, float]  # the fewest bytes a device, on so many devices
    search: LayoutSearch = field(repr=False)
    left_out: str = ""  # what devices do together that is neither in the times nor in the proof

    @property
    def best(self) -> SplitRow:
        return self.table[0]

    def save(self, path: str | Path) -> None:
        """Writes the layout, as JSON that `split=` takes."""
        save_layout(self.layout, Path(path))

    @property
    def layout(self) -> Layout:
        return self.best.layout

    @property
    def seconds(self) -> float:
        return self.best.seconds

    def explain(self) -> str:
        """The layout in words, what it takes, and why copies alone take longer, or are taken."""
        return explain_split(self) + (f". {self.left_out}" if self.left_out else "")

    def using_all(self) -> "SplitPlan":
        """The same with the fastest layout that leaves no device out first: those who were started are to be used."""
        rows = [row for row in self.table if row.layout.devices == len(self.devices)]
        if not rows or rows[0] is self.best:
            return self
        fewer = "1 device alone" if self.layout.devices == 1 else f"{self.layout.devices} devices alone"
        note = f"{fewer} would take {short_seconds(self.seconds)}"
        others = [row for row in self.table if row.layout.devices < len(self.devices)]
        said = f"{self.left_out}. {note}" if self.left_out else note
        return replace(self, table=(*rows, *others), left_out=said)

    def _repr_html_(self) -> str:
        from gradtide.draw.html import html_picture, html_table

        cells = split_cells(self.table, self.bound_seconds)
        notes = [f"{name}: {why}." for name, why in self.skipped.items()]
        shown = html_table(SPLIT_HEADS, cells, notes=[f"{self.explain()}.", *notes])
        return shown + html_picture(self.draw, f"a step of {self.best.text}")

    def draw(self, path: str | Path, row: int = 0) -> None:
        """Draws who computes and sends what, when, to an .svg, .png or .pdf file: of the best, or of another row."""
        from gradtide.schedule.step.pictures import draw_step  # only now: most plans are never drawn

        if not 0 <= row < len(self.table):
            raise ConfigError(f"the table has rows 0 to {len(self.table) - 1}, not {row}")
        draw_step(self.table[row].plan, self.table[row].simulation, path)


def plan_split(
    costs: ModelCosts,
    devices: int | Sequence[str] | None = None,
    topology: Topology | str | Path | None = None,
    memory: float | str | Sequence[float] | None = None,
    *,
    order: str | Sequence[str] | None = None,
    micro_batches: int | Sequence[int] = (),
    speeds: float | Sequence[float] = (),
    copies: bool = True,
    shards: bool = True,
    clip: bool = False,
) -> SplitPlan:
    """Finds the fastest layout of a model with these costs.

    `devices` is a number or names, in the order in which stages take them; `topology` a preset's name, a file, or the
    devices of one host if left out; `memory` what a device has, as a number of bytes or "2GB", or one for each; `order`
    is 1f1b, or gpipe where that fits and is faster, unless named; `speeds` how many times as fast the devices
    are as the one that the costs were measured on, in one number or one for each.
    """
    wishes = split_wishes(order or "1f1b", micro_batches, copies=copies, shards=shards)
    places = split_devices(devices, topology, memory, speeds)
    search = LayoutSearch(costs, places, wishes)
    bound = least_seconds(search.links, places, costs.samples)
    asked, skipped = _candidates(search)
    if not asked:
        raise ConfigError(_nothing_fits(search))
    if order is None:
        asked += _as_gpipe(search, asked)
    table, skipped = _rows(search, asked, skipped, bound, clip=clip)
    if not table:
        raise ScheduleError(f"no layout can be built: {'; '.join(f'{name}: {why}' for name, why in skipped.items())}")
    return SplitPlan(costs, places, bound, tuple(table), skipped, _bytes_on(search), search)


def split_wishes(
    order: str | Sequence[str] = "1f1b",
    micro_batches: int | Sequence[int] = (),
    *,
    copies: bool = True,
    shards: bool = True,
) -> SplitWishes:
    """What a layout may be, or an error that says which of it makes no sense."""
    orders = (order,) if isinstance(order, str) else tuple(order)
    for one in orders:
        if one not in ORDERS:
            raise ConfigError(f"no order is called {one!r}{nearest(one, ORDERS)}")
    if not orders:
        raise ConfigError(f"name an order; known are {', '.join(ORDERS)}")
    counts = (micro_batches,) if isinstance(micro_batches, int) else tuple(micro_batches)
    for count in counts:
        if count < 1:
            raise ConfigError(f"a batch has one micro-batch or more, not {count}")
    return SplitWishes(cast(tuple[Order, ...], orders), counts, copies, shards)


def split_devices(
    devices: int | Sequence[str] | None,
    topology: Topology | str | Path | None = None,
    memory: float | str | Sequence[float] | None = None,
    speeds: float | Sequence[float] = (),
) -> StepDevices:
    """The devices that a model is split over, as plan_split is told."""
    wired = _topology(topology, devices)
    limit = parse_size_bytes(memory) if isinstance(memory, str) else math.inf if memory is None else memory
    if isinstance(speeds, int | float):
        count = len(StepDevices(wired, devices, limit))
        speeds = (speeds,) * count
    return StepDevices(wired, devices, limit, speeds)


def one_host(devices: int) -> Topology:
    """So many devices of one process, which copy through its memory."""
    names = [f"cpu:{number}" for number in range(devices)]
    nodes = (*(Node(name, NodeKind.DEVICE, "host") for name in names), Node("memory", NodeKind.HOST, "host"))
    links = [Link(*ends, MEMORY_COPY, 0.0) for name in names for ends in ((name, "memory"), ("memory", name))]
    return Topology("one host", nodes, tuple(links))


def _topology(topology: Topology | str | Path | None, devices: int | Sequence[str] | None) -> Topology:
    if isinstance(topology, Topology):
        return topology
    if topology is not None:
        return topology_named(str(topology))
    if not isinstance(devices, int):
        raise ConfigError("without a topology devices must be a number; name the topology that has them")
    return one_host(max(1, devices))


def _candidates(search: LayoutSearch) -> tuple[list[tuple[str, Found]], dict[str, str]]:
    """The best few of all, and the best of each kind that does one thing alone."""
    named, skipped = list[tuple[str, Found]](), dict[str, str]()
    for name, plain, fewest in plain_layouts(search):
        if plain is not None:
            named.append((name, plain))
        else:
            need = f": needs {short_size(fewest)} a device" if math.isfinite(fewest) else ""
            skipped[name] = f"does not fit{need}"
    found = sorted([*search.best_of_each(), *mixed_halves(search)], key=lambda one: one.seconds)
    if "interleaved" in search.wishes.orders:
        found = sorted([*found, *interleaved(search)[:FEW]], key=lambda one: one.seconds)
    known = {_key(one.layout) for _, one in named}
    mixed = []
    for one in found:
        if _key(one.layout) not in known:
            mixed.append((layout_text(one.layout), one))
            known.add(_key(one.layout))
    return [*mixed[:FEW], *named], skipped


def _as_gpipe(search: LayoutSearch, asked: list[tuple[str, Found]]) -> list[tuple[str, Found]]:
    """The same pipelines in the other order, where that fits: the closed form does not tell which of them waits longer
    for messages."""
    found = []
    for _, one in asked:
        layout = replace(one.layout, order="gpipe")
        rows = {frozenset(stage.devices) for stage in layout.stages}  # of one, both are the same
        if len(rows) > 1 and search.fits(layout):
            found.append((layout_text(layout), Found(layout, one.seconds)))
    return found


def _key(layout: Layout) -> tuple[object, ...]:
    """What one of is enough: of a single stage, the fastest number of micro-batches."""
    if len(layout.stages) == 1:
        return (layout.devices, layout.stages[0].shards)
    return (layout.stages, layout.micro_batches, layout.order)


def _rows(
    search: LayoutSearch, asked: list[tuple[str, Found]], skipped: dict[str, str], bound: float, *, clip: bool
) -> tuple[list[SplitRow], dict[str, str]]:
    rows, left = list[SplitRow](), MOST_TASKS
    fastest = min(one.seconds for _, one in asked)
    for name, one in sorted(asked, key=lambda item: (item[1].seconds > fastest, _tasks(search, item[1].layout))):
        left -= _tasks(search, one.layout)
        if left < 0 and rows:
            skipped[name] = (
                f"too large a step to simulate beside the others; by closed form {short_seconds(one.seconds)}"
            )
            continue
        try:
            rows.append(row_of(name, one, search, bound, clip=clip))
        except ScheduleError as error:
            skipped[name] = str(error)
    rows.sort(key=lambda row: (float(f"{row.seconds:.9g}"), len(row.layout.stages), row.layout.micro_batches))
    return _simplest_first(rows), skipped


def _simplest_first(rows: list[SplitRow]) -> list[SplitRow]:
    """Copies alone, where nothing else is faster by more than a prediction is worth."""
    as_fast = [row for row in rows if row.name == "copies alone" and row.seconds <= rows[0].seconds * CLOSE]
    return as_fast[:1] + [row for row in rows if row not in as_fast[:1]]


def _tasks(search: LayoutSearch, layout: Layout) -> int:
    """About how many tasks a step has."""
    each = [len(stage.devices) * (4 + float(figures_of(search.links, stage).exchanges)) for stage in layout.stages]
    return round(sum(each) * layout.micro_batches)


def row_of(name: str, one: Found, search: LayoutSearch, bound: float, *, clip: bool = False) -> SplitRow:
    """A layout built, proven and simulated."""
    devices, layout = search.devices, one.layout
    speeds = devices.speeds[: layout.devices]
    shape = shape_of(layout, search.costs, search.samples, clip=clip, speeds=speeds, links=search.links)
    return row_of_plan(name, one, build_step(shape, devices.names[: layout.devices]), devices, bound)


def row_of_plan(name: str, one: Found, plan: StepPlan, devices: StepDevices, bound: float) -> SplitRow:
    """A step proven and simulated; refused where it is wrong, or does not fit."""
    proof = verify_step(plan)
    for device, need, limit in zip(plan.devices, proof.peak_bytes, devices.memory_bytes, strict=False):
        if need > limit:
            raise ScheduleError(f"does not fit: needs {short_size(need)} on {device}, which has {short_size(limit)}")
    run = simulate_step(plan, devices.topology)
    return SplitRow(
        name=name,
        text=layout_text(one.layout),
        layout=one.layout,
        seconds=run.seconds,
        closed_form_s=one.seconds,
        device_bytes=max(proof.peak_bytes),
        bubble=run.bubble,
        synchronisations=sum(task.kind in ("exchange", "sum", "norm") for task in plan.tasks),
        busiest_link=run.busiest_link,
        busiest_seconds=run.busiest_seconds,
        ratio=run.seconds / bound if bound else math.inf,
        plan=plan,
        simulation=run,
    )


def _nothing_fits(search: LayoutSearch) -> str:
    """One line: the budget, and what would do."""
    have = short_size(max(search.devices.memory_bytes))
    count = len(search.devices)
    needed = short_size(least_bytes(search) * 1.0006)  # so that four digits of it are enough
    on = "1 device" if count == 1 else f"{count} devices"
    what = f"no layout on {on} is sure to fit into {have} a device"
    return f"{what}: {needed} would do, or more devices, or a smaller batch"


def _bytes_on(search: LayoutSearch) -> dict[int, float]:
    """On 1, 2 and 4 of the devices."""
    found = {}
    for count in (1, 2, 4):
        if count <= len(search.devices):
            few = StepDevices(search.devices.topology, search.devices.names[:count])
            found[count] = least_bytes(LayoutSearch(search.costs, few, search.wishes, search.samples))
    return found
