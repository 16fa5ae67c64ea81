"""A topology with the traffic on its links."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.draw.curves import Points, between, shifted
from gradtide.draw.layout import Box, NodeLayout, lay_out
from gradtide.draw.save import save
from gradtide.errors import OutputError, ScheduleError
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.units import format_bytes_per_s, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_topology"]

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
MOST_NODES = 400  # beyond that nobody can read it


@dataclass(frozen=True, slots=True)
class Stroke:
    """How one direction between two nodes is drawn."""

    colour: str
    points: float


def draw_topology(
    topology: Topology, path: Path, loads: Mapping[Pair, float] | None = None, title: str = "", note: str = ""
) -> None:
    """Draws the topology to an .svg, .png or .pdf file.

    `loads` gives the bytes that go from a node to its neighbour; links are then coloured by how long they are busy
    (bytes / bandwidth) compared with the busiest, which is named. Without it, links are coloured by bandwidth.
    `title` stands on top (the topology's name where it is empty), `note` below it.
    """
    if len(topology.nodes) > MOST_NODES:
        text = f"{topology.name} has {len(topology.nodes):,} nodes; a picture holds {MOST_NODES}"
        raise OutputError(f"{text}; draw a smaller topology of the same shape")
    rates = _rates(topology)
    lines = [note] if note else []
    if loads is None:
        strokes, legend = _by_bandwidth(topology)
    else:
        busy_s = _busy_seconds(loads, rates)
        strokes, legend = _by_traffic(busy_s, rates)
        lines += _busiest_text(busy_s, loads)
    layout = lay_out(topology)
    curves = _curves(layout, strokes)
    figure, axes = _canvas(layout, list(curves.values()), title or topology.name, lines)
    _draw_machines(axes, layout)
    _draw_links(axes, curves, strokes, one_line=loads is None)
    _draw_nodes(axes, layout, topology)
    caption = "bandwidth a direction" if loads is None else "time a link is busy, compared with the busiest"
    _draw_legend(figure, caption, _kind_handles(topology), legend)
    save(figure, path)


def _rates(topology: Topology) -> dict[Pair, float]:
    rates: dict[Pair, float] = defaultdict(float)
    for link in topology.links:
        rates[link.source, link.target] += link.bytes_per_s * link.count
    return dict(rates)


def _busy_seconds(loads: Mapping[Pair, float], rates: Mapping[Pair, float]) -> dict[Pair, float]:
    for source, target in loads:
        if (source, target) not in rates:
            raise ScheduleError(f"the traffic names a link from {source} to {target}, which the topology has not")
    return {pair: loads.get(pair, 0.0) / rate for pair, rate in rates.items()}


def _by_traffic(busy_s: Mapping[Pair, float], rates: Mapping[Pair, float]) -> tuple[dict[Pair, Stroke], list[Any]]:
    most = max(busy_s.values(), default=0.0)
    strokes, used = {}, set()
    for pair in rates:
        share = busy_s[pair] / most if most else 0.0
        index = next(i for i, bin_ in enumerate(BINS) if share <= bin_[0])
        used.add(index)
        strokes[pair] = Stroke(BINS[index][2], BINS[index][3])
    return strokes, [(BINS[i][1], BINS[i][2], BINS[i][3]) for i in sorted(used)]


def _busiest_text(busy_s: Mapping[Pair, float], loads: Mapping[Pair, float]) -> list[str]:
    most = max(busy_s.values(), default=0.0)
    if not most:
        return ["no traffic"]
    equal = [pair for pair, seconds in busy_s.items() if seconds >= most * 0.999]
    source, target = equal[0]
    text = f"busiest link: {source} → {target}, {loads[equal[0]] / 1e6:,.4g} MB in {_short_seconds(most)}"
    return [text + (f" (and {len(equal) - 1} more like it)" if len(equal) > 1 else "")]


def _short_seconds(seconds: float) -> str:
    return format_seconds(float(f"{seconds:.3g}"))


def _by_bandwidth(topology: Topology) -> tuple[dict[Pair, Stroke], list[Any]]:
    """A colour and a width for each distinct bandwidth, the fastest first."""
    texts: dict[Pair, list[str]] = defaultdict(list)
    for link in topology.links:
        times = f"{link.count} × " if link.count > 1 else ""
        texts[link.source, link.target].append(f"{times}{format_bytes_per_s(float(f'{link.bytes_per_s:.4g}'))}")
    rates = _rates(topology)
    known = sorted({(-rates[pair], " + ".join(text)) for pair, text in texts.items()})
    style = {text: (CLASSES[i % len(CLASSES)], max(1.0, 3.2 - 0.6 * i)) for i, (_, text) in enumerate(known)}
    strokes = {pair: Stroke(*style[" + ".join(text)]) for pair, text in texts.items()}
    named = [(text, *style[text]) for _, text in known[:7]]
    return strokes, named + ([(f"{len(known) - 7} slower", "#33475b", 1.0)] if len(known) > 7 else [])


def _canvas(layout: NodeLayout, curves: Sequence[Points], title: str, lines: Sequence[str]) -> tuple["Figure", "Axes"]:
    """A figure whose axes are inches, with room for a title above and a legend below."""
    from matplotlib.figure import Figure

    boxes = layout.boxes.values()
    left = min([b.x - b.width / 2 for b in boxes] + [c[:, 0].min() for c in curves])
    right = max([b.x + b.width / 2 for b in boxes] + [c[:, 0].max() for c in curves])
    bottom = min([b.y - b.height / 2 for b in boxes] + [c[:, 1].min() for c in curves])
    top = max([b.y + b.height / 2 for b in boxes] + [c[:, 1].max() for c in curves])
    middle, width = (left + right) / 2, max(right - left + 1.0, 7.4)
    frames = 0.3 if layout.machines else 0.0
    low, high = bottom - 1.35 - frames, top + 0.3 + frames + 0.55 + 0.27 * len(lines)
    figure = Figure(figsize=(width, high - low))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(middle - width / 2, middle + width / 2)
    axes.set_ylim(low, high)
    axes.axis("off")
    axes.text(middle, high - 0.34, title, ha="center", va="center", fontsize=14, fontweight="bold", family=TYPE)
    for i, line in enumerate(lines):
        axes.text(middle, high - 0.68 - 0.27 * i, line, ha="center", va="center", fontsize=10.5, family=TYPE)
    return figure, axes


def _draw_machines(axes: "Axes", layout: NodeLayout) -> None:
    from matplotlib.patches import FancyBboxPatch

    framed = {name for names in layout.machines.values() for name in names}
    hub = max((box.y for name, box in layout.boxes.items() if name not in framed), default=float("inf"))
    for machine, names in layout.machines.items():
        held = [layout.boxes[name] for name in names]
        left, right = min(b.x - b.width / 2 for b in held), max(b.x + b.width / 2 for b in held)
        low, high = min(b.y for b in held) - 0.28, max(b.y for b in held) + 0.28
        style = "round,pad=0,rounding_size=0.1"
        frame = FancyBboxPatch((left - 0.12, low), right - left + 0.24, high - low, boxstyle=style)
        frame.set(facecolor="#fafafa", edgecolor="#b8b8b8", linestyle=(0, (4, 3)), linewidth=0.9, zorder=0)
        axes.add_patch(frame)
        text: dict[str, Any] = {"fontsize": 9, "color": "#555555", "family": TYPE}
        outside = high + 0.15 if low > hub else low - 0.15  # away from what joins the machines
        axes.text((left + right) / 2, outside, machine, ha="center", va="center", **text)


def _curves(layout: NodeLayout, strokes: Mapping[Pair, Stroke]) -> dict[Pair, Points]:
    """The line of each pair that is wired."""
    boxes = layout.boxes
    lines = {}
    for a, b in _neighbours(strokes):
        others = [box for name, box in boxes.items() if name not in (a, b)]
        lines[a, b] = between(boxes[a], boxes[b], others, layout.tiered, layout.core)
    return lines


def _draw_links(axes: "Axes", curves: Mapping[Pair, Points], strokes: Mapping[Pair, Stroke], one_line: bool) -> None:
    for (a, b), line in curves.items():
        there, back = strokes.get((a, b)), strokes.get((b, a))
        if one_line and there == back and there:
            axes.plot(line[:, 0], line[:, 1], color=there.colour, lw=there.points, solid_capstyle="butt", zorder=1)
            continue
        for stroke, points in ((there, line), (back, line[::-1])):
            if stroke:
                aside = (max(there.points if there else 0, back.points if back else 0) / 2 + 0.9) / 72
                _draw_arrow(axes, shifted(points, aside), stroke)


def _neighbours(strokes: Mapping[Pair, Stroke]) -> Iterator[Pair]:
    """Each pair that is wired, once; the calmest first, so that the busy ones lie on top."""
    seen: dict[Pair, None] = {}  # no set: its order, and so the picture's bytes, would differ from run to run
    for a, b in sorted(strokes, key=lambda pair: strokes[pair].points):
        if (b, a) not in seen:
            seen[a, b] = None
    # A pair is drawn when its busier direction comes.
    yield from sorted(seen, key=lambda p: max(strokes[p].points, strokes.get((p[1], p[0]), strokes[p]).points))


def _draw_arrow(axes: "Axes", points: Any, stroke: Stroke) -> None:
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


def _draw_nodes(axes: "Axes", layout: NodeLayout, topology: Topology) -> None:
    from matplotlib.patches import FancyBboxPatch

    for node in topology.nodes:
        box: Box = layout.boxes[node.name]
        round_ = 0.13 if node.kind is NodeKind.DEVICE else 0.02
        corner = (box.x - box.width / 2, box.y - box.height / 2)
        style = f"round,pad=0,rounding_size={round_}"
        patch = FancyBboxPatch(corner, box.width, box.height, boxstyle=style, zorder=3)
        patch.set(facecolor=FILL[node.kind], edgecolor=EDGE[node.kind], linewidth=1.2)
        axes.add_patch(patch)
        text: dict[str, Any] = {"fontsize": 9.5, "family": TYPE, "zorder": 4}
        axes.text(box.x, box.y - 0.01, box.text, ha="center", va="center", **text)


def _kind_handles(topology: Topology) -> list[Any]:
    from matplotlib.patches import Patch

    there = {node.kind for node in topology.nodes}
    return [Patch(facecolor=FILL[k], edgecolor=EDGE[k], label=KIND[k]) for k in NodeKind if k in there]


def _draw_legend(figure: "Figure", caption: str, kinds: list[Any], links: list[tuple[str, str, float]]) -> None:
    """What colours and widths mean, and below that the kinds of nodes."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, lw=points, label=text) for text, colour, points in links]
    height, font = figure.get_figheight(), {"family": TYPE, "size": 9}
    figure.text(0.5, 0.84 / height, caption, ha="center", va="center", fontsize=9, family=TYPE, style="italic")
    for handles, y in ((kinds, 0.14), (lines, 0.44)):
        figure.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, y / height), ncols=max(len(handles), 1),
            frameon=False, handlelength=1.9, columnspacing=1.3, borderpad=0.1, prop=font,
        )  # fmt: skip
