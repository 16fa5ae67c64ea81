"""A large cluster in one picture: a machine of each kind whole, a few switches of each tier, and how many there are."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.draw.cluster_layout import ClusterLayout, Frame, lay_out_cluster
from gradtide.draw.layout import Box
from gradtide.draw.save import save
from gradtide.draw.strokes import EDGE, FILL, TYPE, Pair, Stroke, draw_legend, kind_handles
from gradtide.topology.kinds import wire_kind
from gradtide.topology.machines import wire_counts
from gradtide.topology.model import Node, NodeKind, Topology
from gradtide.topology.units import format_bytes_per_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_cluster"]

LEFT, RIGHT = 1.75, 2.35  # inches beside the drawing, for what counts the tiers and what names the wires
INK = "#333333"
LETTER = 0.073  # inches of a letter of 9 points


def draw_cluster(
    topology: Topology,
    path: Path,
    strokes: Mapping[Pair, Stroke],
    legend: tuple[str, list[Any]],
    heading: tuple[str, list[str]],
) -> None:
    """Draws the structure to a file. A line between two boxes has the stroke of its busier direction."""
    from matplotlib.figure import Figure

    layout = lay_out_cluster(topology)
    boxes = layout.boxes.values()
    left = min([box.x - box.width / 2 for box in boxes] + [frame.left for frame in layout.frames]) - LEFT
    right = max([box.x + box.width / 2 for box in boxes] + [frame.right for frame in layout.frames]) + RIGHT
    inside = [_inside_text(topology, frame) for frame in layout.frames]
    deep = max((len(lines) for lines in inside), default=0)
    bottom = min(frame.bottom for frame in layout.frames) - 0.5 - 0.2 * deep
    top = max(box.y for box in boxes) + 0.35
    low, high = bottom - 1.15, top + 0.62 + 0.27 * len(heading[1])
    middle, width = (left + right) / 2, max(right - left, 8.0)
    figure = Figure(figsize=(width, high - low))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(middle - width / 2, middle + width / 2), ylim=(low, high))
    axes.axis("off")
    _draw_heading(axes, heading, middle, high)
    for frame, lines in zip(layout.frames, inside, strict=True):
        _draw_frame(axes, frame, lines)
    _draw_lines(axes, layout, strokes)
    _draw_boxes(axes, layout, {node.name: node for node in topology.nodes})
    _draw_rows(axes, layout, topology, (left, right))
    draw_legend(figure, legend[0], kind_handles(topology), legend[1])
    save(figure, path)


def _draw_heading(axes: "Axes", heading: tuple[str, list[str]], middle: float, high: float) -> None:
    title, lines = heading
    axes.text(middle, high - 0.34, title, ha="center", va="center", fontsize=14, fontweight="bold", family=TYPE)
    for at, line in enumerate(lines):
        axes.text(middle, high - 0.68 - 0.27 * at, line, ha="center", va="center", fontsize=10.5, family=TYPE)


def _draw_frame(axes: "Axes", frame: Frame, lines: list[str]) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.1"
    many = len(frame.kind.machines)
    if many > 1:  # a second frame behind the first: one of a stack
        corner = (frame.left + 0.09, frame.bottom - 0.09)
        behind = FancyBboxPatch(corner, frame.right - frame.left, frame.top - frame.bottom, boxstyle=style)
        behind.set(facecolor="#f1f1f1", edgecolor="#b8b8b8", linewidth=0.9, zorder=-1)
        axes.add_patch(behind)
    patch = FancyBboxPatch(
        (frame.left, frame.bottom), frame.right - frame.left, frame.top - frame.bottom, boxstyle=style
    )
    patch.set(facecolor="#fafafa", edgecolor="#999999", linewidth=1.0, zorder=0)
    axes.add_patch(patch)
    names = f"{frame.kind.first} … {frame.kind.machines[-1]}" if many > 1 else frame.kind.first
    text: dict[str, Any] = {"ha": "center", "va": "center", "family": TYPE, "color": INK}
    x = (frame.left + frame.right) / 2
    axes.text(x, frame.bottom - 0.3, f"{many:,} × {names}" if many > 1 else names, fontsize=11, weight="bold", **text)
    for at, line in enumerate(lines):
        axes.text(x, frame.bottom - 0.54 - 0.2 * at, line, fontsize=9, **text)


def _inside_text(topology: Topology, frame: Frame) -> list[str]:
    """The wires inside the machine, and out of it, by kind."""
    mine = set(frame.kind.nodes)
    links = [link for link in topology.links if link.source in mine]
    texts = []
    for kind in dict.fromkeys(wire_kind(link) for link in links if link.target in mine):
        rates = Counter((link.count, link.bytes_per_s) for link in links if wire_kind(link) == kind)
        texts.append(f"{kind}  {' or '.join(_rate(count, rate) for count, rate in rates)}")
    most = max(24, int((frame.right - frame.left + 0.4) / LETTER))
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) + 4 <= most:
            lines[-1] += f"    {text}"
        else:
            lines.append(text)
    return lines


def _rate(count: int, bytes_per_s: float) -> str:
    rate = format_bytes_per_s(float(f"{bytes_per_s:.4g}"))
    return f"{count} × {rate}" if count > 1 else rate


def _draw_lines(axes: "Axes", layout: ClusterLayout, strokes: Mapping[Pair, Stroke]) -> None:
    drawn: dict[Pair, Stroke] = {}
    for (source, target), stroke in strokes.items():
        if source in layout.boxes and target in layout.boxes:
            pair = (source, target) if (target, source) not in drawn else (target, source)
            if pair not in drawn or stroke.points > drawn[pair].points:
                drawn[pair] = stroke
    for (a, b), stroke in sorted(drawn.items(), key=lambda item: item[1].points):
        low, high = sorted((layout.boxes[a], layout.boxes[b]), key=lambda box: box.y)
        spread = min(0.45 * low.width, abs(high.x - low.x)) * (1 if high.x > low.x else -1)
        start = low.x + (spread if low.width > 1.0 else 0.0)
        end = high.x - min(0.42 * high.width, abs(high.x - low.x)) * (1 if high.x > low.x else -1) * (high.width > 1.0)
        if low.y == high.y:
            _draw_beside(axes, layout, sorted((low, high), key=lambda box: box.x), stroke)
            continue
        ys = low.y + low.height / 2, high.y - high.height / 2
        axes.plot([start, end], ys, color=stroke.colour, lw=stroke.points, solid_capstyle="butt", zorder=1)


def _draw_beside(axes: "Axes", layout: ClusterLayout, pair: list[Box], stroke: Stroke) -> None:
    """Between two boxes of one row: straight where nothing is between them, else in an arch over what is."""
    import numpy as np

    left, right = pair
    if not any(box.y == left.y and left.x < box.x < right.x for box in layout.boxes.values()):
        xs = [left.x + left.width / 2, right.x - right.width / 2]
        axes.plot(xs, [left.y] * 2, color=stroke.colour, lw=stroke.points, solid_capstyle="butt", zorder=1)
        return
    x = np.linspace(left.x, right.x, 30)
    height = min(0.3, 0.12 * (right.x - left.x))
    curve = left.y + left.height / 2 + 4 * height * (x - left.x) * (right.x - x) / (right.x - left.x) ** 2
    axes.plot(x, curve, color=stroke.colour, lw=stroke.points, zorder=1)


def _draw_boxes(axes: "Axes", layout: ClusterLayout, nodes: Mapping[str, Node]) -> None:
    from matplotlib.patches import FancyBboxPatch

    for name, box in layout.boxes.items():
        kind = nodes[name].kind
        style = f"round,pad=0,rounding_size={0.13 if kind is NodeKind.DEVICE else 0.02}"
        corner = (box.x - box.width / 2, box.y - box.height / 2)
        patch = FancyBboxPatch(corner, box.width, box.height, boxstyle=style, zorder=3)
        patch.set(facecolor=FILL[kind], edgecolor=EDGE[kind], linewidth=1.2)
        axes.add_patch(patch)
        text: dict[str, Any] = {"fontsize": 9.5, "family": TYPE, "zorder": 4}
        axes.text(box.x, box.y - 0.01, box.text, ha="center", va="center", **text)
    for x, y in layout.dots:
        axes.text(x, y, "…", ha="center", va="center", fontsize=16, family=TYPE, color=INK)


def _draw_rows(axes: "Axes", layout: ClusterLayout, topology: Topology, sides: tuple[float, float]) -> None:
    """How many there are of each tier, on the left; what wires lead down from it, on the right."""
    wires = wire_counts(topology)
    kinds_of = {tier.kind for tier, _ in layout.rows}
    machines = sum(len(frame.kind.machines) for frame in layout.frames)
    below = layout.frames[0].top
    for tier, y in layout.rows:
        axes.text(
            sides[0] + 0.2, y, f"{len(tier.nodes):,} × {tier.kind}", va="center", fontsize=11, weight="bold",
            family=TYPE, color=INK,
        )  # fmt: skip
        lower = _wires_below(tier.kind, wires, kinds_of, layout)
        x, middle = sides[1] - RIGHT + 0.25, (below + y) / 2
        axes.text(x, middle, "\n".join(lower), va="center", fontsize=9, family=TYPE, color=INK, linespacing=1.35)
        below = y
    if layout.more_kinds:
        text = f"and {layout.more_kinds} more kinds of machines ({machines:,} are of those drawn)"
        bottom = min(frame.bottom for frame in layout.frames)
        axes.text(sides[0] + 0.2, bottom, text, va="top", fontsize=9, family=TYPE, color=INK)


def _wires_below(
    kind: str, wires: Mapping[str, Counter[tuple[int, float]]], tiers: set[str], layout: ClusterLayout
) -> list[str]:
    """The kinds of wires between a tier and what is below it: machines, or the tier before."""
    order = [tier.kind for tier, _ in layout.rows]
    lower = set(order[: order.index(kind)])
    lines = []
    for name, rates in wires.items():
        ends = name.split("-")
        other = next((end for end in ends if end != kind), kind)
        if kind not in ends or (other in tiers and other not in lower):
            continue
        lines.append(name)
        lines += [f"  {links // 2:,} × ({_rate(count, rate)})" if count > 1 else f"  {links // 2:,} × {_rate(1, rate)}"
                  for (count, rate), links in rates.most_common(3)]  # fmt: skip
    return lines
