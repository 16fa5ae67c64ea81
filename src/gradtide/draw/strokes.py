"""How links are drawn: colours and widths by traffic or by bandwidth, and the legend that says so."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradtide.errors import ScheduleError
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.units import format_bytes_per_s, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "EDGE", "FILL", "TYPE", "Pair", "Stroke", "busiest_text", "busy_seconds", "by_bandwidth", "by_traffic",
    "draw_arrow", "draw_legend", "kind_handles", "pair_rates",
]  # fmt: skip

Pair = tuple[str, str]

FILL = {NodeKind.DEVICE: "#d7ead0", NodeKind.HOST: "#cfe0f5", NodeKind.SWITCH: "#e4e4e4", NodeKind.NIC: "#f7e6c4"}
EDGE = {NodeKind.DEVICE: "#3c7a2c", NodeKind.HOST: "#2b5f9e", NodeKind.SWITCH: "#666666", NodeKind.NIC: "#a87a1c"}
KIND = {NodeKind.DEVICE: "device", NodeKind.HOST: "host", NodeKind.SWITCH: "switch", NodeKind.NIC: "NIC"}

# Shares of the busiest link's time, from idle to busiest: colour and width in points. Dark means busy, also in grey.
BINS = (
    (0.0, "idle", "#c9c9c9", 0.8),
    (0.25, "up to 25 %", "#f2b34c", 1.2),
    (0.5, "up to 50 %", "#ea7a28", 1.7),
    (0.75, "up to 75 %", "#cc3f22", 2.2),
    (0.999, "up to 100 %", "#9e1b32", 2.7),
    (float("inf"), "busiest", "#4d0a2a", 3.3),
)
CLASSES = ("#33475b", "#b5651d", "#6a3d9a", "#1b7a7a", "#8a1c4a", "#5b6d00")
TYPE = "DejaVu Sans"


@dataclass(frozen=True, slots=True)
class Stroke:
    """How one direction between two nodes is drawn."""

    colour: str
    points: float


def pair_rates(topology: Topology) -> dict[Pair, float]:
    rates: dict[Pair, float] = defaultdict(float)
    for link in topology.links:
        rates[link.source, link.target] += link.bytes_per_s * link.count
    return dict(rates)


def busy_seconds(loads: Mapping[Pair, float], rates: Mapping[Pair, float]) -> dict[Pair, float]:
    for source, target in loads:
        if (source, target) not in rates:
            raise ScheduleError(f"the traffic names a link from {source} to {target}, which the topology has not")
    return {pair: loads.get(pair, 0.0) / rate for pair, rate in rates.items()}


def by_traffic(busy_s: Mapping[Pair, float], rates: Mapping[Pair, float]) -> tuple[dict[Pair, Stroke], list[Any]]:
    most = max(busy_s.values(), default=0.0)
    strokes, used = {}, set()
    for pair in rates:
        share = busy_s[pair] / most if most else 0.0
        index = next(i for i, bin_ in enumerate(BINS) if share <= bin_[0])
        used.add(index)
        strokes[pair] = Stroke(BINS[index][2], BINS[index][3])
    return strokes, [(BINS[i][1], BINS[i][2], BINS[i][3]) for i in sorted(used)]


def busiest_text(busy_s: Mapping[Pair, float], loads: Mapping[Pair, float]) -> list[str]:
    most = max(busy_s.values(), default=0.0)
    if not most:
        return ["no traffic"]
    equal = [pair for pair, seconds in busy_s.items() if seconds >= most * 0.999]
    source, target = equal[0]
    text = f"busiest link: {source} → {target}, {loads[equal[0]] / 1e6:,.4g} MB in {_short_seconds(most)}"
    return [text + (f" (and {len(equal) - 1} more like it)" if len(equal) > 1 else "")]


def _short_seconds(seconds: float) -> str:
    return format_seconds(float(f"{seconds:.3g}"))


def by_bandwidth(topology: Topology) -> tuple[dict[Pair, Stroke], list[Any]]:
    """A colour and a width for each distinct bandwidth, the fastest first."""
    texts: dict[Pair, list[str]] = defaultdict(list)
    for link in topology.links:
        times = f"{link.count} × " if link.count > 1 else ""
        texts[link.source, link.target].append(f"{times}{format_bytes_per_s(float(f'{link.bytes_per_s:.4g}'))}")
    rates = pair_rates(topology)
    known = sorted({(-rates[pair], " + ".join(text)) for pair, text in texts.items()})
    style = {text: (CLASSES[i % len(CLASSES)], max(1.0, 3.2 - 0.6 * i)) for i, (_, text) in enumerate(known)}
    strokes = {pair: Stroke(*style[" + ".join(text)]) for pair, text in texts.items()}
    named = [(text, *style[text]) for _, text in known[:7]]
    return strokes, named + ([(f"{len(known) - 7} slower", "#33475b", 1.0)] if len(known) > 7 else [])


def kind_handles(topology: Topology) -> list[Any]:
    from matplotlib.patches import Patch

    there = {node.kind for node in topology.nodes}
    return [Patch(facecolor=FILL[k], edgecolor=EDGE[k], label=KIND[k]) for k in NodeKind if k in there]


def draw_arrow(axes: "Axes", points: Any, stroke: Stroke) -> None:
    """A line with a head at its end; the head is part of the length, so that it touches the box and no more."""
    import numpy as np

    head = (4.0 + 1.5 * stroke.points) / 72
    left = np.hypot(*(points - points[-1]).T)
    body = points[: max(2, int(np.sum(left > head * 0.9)))]
    base = points[np.argmin(np.abs(left - head))]
    along = (points[-1] - base) / max(np.hypot(*(points[-1] - base)), 1e-9)
    side = np.array([-along[1], along[0]]) * head * 0.42
    tip = points[-1]
    order = 1 + stroke.points / 10
    axes.plot(body[:, 0], body[:, 1], color=stroke.colour, lw=stroke.points, solid_capstyle="butt", zorder=order)
    corners = [tip, tip - along * head + side, tip - along * head - side]
    axes.fill([c[0] for c in corners], [c[1] for c in corners], color=stroke.colour, lw=0, zorder=order)


def draw_legend(
    figure: "Figure", caption: str, kinds: list[Any], links: list[tuple[str, str, float]], low: float = 0.0
) -> None:
    """What colours and widths mean, and below that the kinds of nodes, `low` inches above the bottom."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, lw=points, label=text) for text, colour, points in links]
    height, font = figure.get_figheight(), {"family": TYPE, "size": 9}
    figure.text(0.5, (low + 0.84) / height, caption, ha="center", va="center", fontsize=9, family=TYPE, style="italic")
    for handles, y in ((kinds, 0.14), (lines, 0.44)):
        figure.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, (low + y) / height), ncols=max(len(handles), 1),
            frameon=False, handlelength=1.9, columnspacing=1.3, borderpad=0.1, prop=font,
        )  # fmt: skip
