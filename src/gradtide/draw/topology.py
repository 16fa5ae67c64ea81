"""A topology with the traffic on its links."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.draw.cluster import draw_cluster
from gradtide.draw.curves import Points, lines_of, shifted
from gradtide.draw.layout import Box, NodeLayout, lay_out
from gradtide.draw.rings_and_trees import Panels, RingOrTree, strands_of
from gradtide.draw.save import save
from gradtide.draw.sizes import colour_of
from gradtide.draw.strokes import (
    EDGE,
    FILL,
    TYPE,
    Pair,
    Stroke,
    busiest_text,
    busy_seconds,
    by_bandwidth,
    by_traffic,
    draw_arrow,
    draw_legend,
    kind_handles,
    pair_rates,
)
from gradtide.extras import require
from gradtide.topology.model import NodeKind, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_topology", "is_cluster"]

MOST_DEVICES = 32  # of several machines on one switch; beyond that a machine of each kind is drawn, and how many
FEW_DEVICES = 8  # the same where a fabric of several switches joins them
MOST_NODES = 100  # of one machine; beyond that one device and what it is wired to


def draw_topology(
    topology: Topology,
    path: Path,
    loads: Mapping[Pair, float] | None = None,
    title: str = "",
    note: str = "",
    *,
    rated: bool = True,
    ways: Sequence[RingOrTree] = (),
) -> None:
    """Draws the topology to an .svg, .png or .pdf file.

    `loads` gives the bytes that go from a node to its neighbour; links are then coloured by how long they are busy
    (bytes / bandwidth) compared with the busiest, which is named. Without it, links are coloured by bandwidth.
    Where bandwidths are not known (`rated=False`, all alike) bytes are compared, and no time is named.
    `title` stands on top (the topology's name where it is empty), `note` below it. `ways` are the rings or trees of
    which the traffic is made: each has a colour and a small picture of its own below. Of a large cluster a machine of
    each kind is drawn whole, some switches of each tier, and how many there are of each, and no ways.
    """
    require("plot", "drawing")
    rates = pair_rates(topology)
    lines = [note] if note else []
    if loads is None:
        strokes, legend = by_bandwidth(topology)
    else:
        busy_s = busy_seconds(loads, rates)
        strokes, legend = by_traffic(busy_s, rates)
        lines += busiest_text(busy_s, loads) if rated else []
    what = "time a link is busy" if rated else "bytes over a link"
    caption = "bandwidth a direction" if loads is None else f"{what}, compared with the busiest"
    if is_cluster(topology):
        draw_cluster(topology, path, strokes, (caption, legend), (title or topology.name, lines))
        return
    if len(topology.nodes) > MOST_NODES:
        topology, text = _neighbourhood(topology)
        strokes = {pair: stroke for pair, stroke in strokes.items() if set(pair) <= {n.name for n in topology.nodes}}
        lines.append(text)
    layout = lay_out(topology)
    devices = {node.name for node in topology.nodes if node.kind is NodeKind.DEVICE}
    curves = lines_of(layout, _neighbours(strokes), devices)
    figure, axes, panels = _canvas(layout, list(curves.values()), title or topology.name, lines, (ways, topology))
    strands = strands_of(ways)
    if strands:
        caption, legend = _legend_of(ways)
    _draw_machines(axes, layout, curves)
    _draw_links(axes, curves, strokes, strands, one_line=loads is None)
    _draw_nodes(axes, layout, topology)
    draw_legend(figure, caption, kind_handles(topology), legend, panels.height)
    panels.draw(figure)
    save(figure, path)


def _legend_of(ways: Sequence[RingOrTree]) -> tuple[str, list[tuple[str, str, float]]]:
    return "an arrow has the colours of what goes over it", [
        (way.name, colour_of(number), 2.2) for number, way in enumerate(ways)
    ]


def is_cluster(topology: Topology) -> bool:
    """Whether its structure is drawn, instead of every node."""
    machines = {node.machine for node in topology.nodes if node.machine}
    between = sum(not node.machine for node in topology.nodes)
    devices = sum(node.kind is NodeKind.DEVICE for node in topology.nodes)
    return len(machines) > 1 and devices > (FEW_DEVICES if between > 1 else MOST_DEVICES)


def _neighbourhood(topology: Topology) -> tuple[Topology, str]:
    """The first device, what it is wired to (a dozen of them, if that are more), and words for the rest."""
    devices = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    near = dict.fromkeys(link.target for link in topology.links if link.source == devices[0])
    hubs = [name for name in near if name not in devices]
    beyond = dict.fromkeys(link.target for link in topology.links if link.source in hubs)
    shown = {devices[0], *list(near)[:12], *list(beyond)[:12]}
    nodes = tuple(node for node in topology.nodes if node.name in shown)
    links = tuple(link for link in topology.links if {link.source, link.target} <= shown)
    left = len(topology.nodes) - len(nodes)
    text = f"{devices[0]} and what it is wired to; {left:,} more of {len(topology.nodes):,} nodes are not drawn"
    return replace(topology, nodes=nodes, links=links), text


def _canvas(
    layout: NodeLayout,
    curves: Sequence[Points],
    title: str,
    lines: Sequence[str],
    ways: tuple[Sequence[RingOrTree], Topology],
) -> tuple["Figure", "Axes", Panels]:
    """A figure whose axes are inches, with room for a title above, and a legend and panels below."""
    from matplotlib.figure import Figure

    boxes = layout.boxes.values()
    left = min([b.x - b.width / 2 for b in boxes] + [c[:, 0].min() for c in curves])
    right = max([b.x + b.width / 2 for b in boxes] + [c[:, 0].max() for c in curves])
    bottom = min([b.y - b.height / 2 for b in boxes] + [c[:, 1].min() for c in curves])
    top = max([b.y + b.height / 2 for b in boxes] + [c[:, 1].max() for c in curves])
    middle, width = (left + right) / 2, max(right - left + 1.0, 7.4)
    frames = 0.3 if layout.machines else 0.0
    low, high = bottom - 1.35 - frames, top + 0.3 + frames + 0.55 + 0.27 * len(lines)
    panels = Panels(*ways, width)
    width, height = max(width, panels.width), high - low + panels.height
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, panels.height / height, 1, 1 - panels.height / height))
    axes.set_xlim(middle - width / 2, middle + width / 2)
    axes.set_ylim(low, high)
    axes.axis("off")
    axes.text(middle, high - 0.34, title, ha="center", va="center", fontsize=14, fontweight="bold", family=TYPE)
    for i, line in enumerate(lines):
        axes.text(middle, high - 0.68 - 0.27 * i, line, ha="center", va="center", fontsize=10.5, family=TYPE)
    return figure, axes, panels


def _draw_machines(axes: "Axes", layout: NodeLayout, curves: Mapping[Pair, Points]) -> None:
    """A frame around each machine's boxes and the lines between them."""
    from matplotlib.patches import FancyBboxPatch

    framed = {name for names in layout.machines.values() for name in names}
    hub = max((box.y for name, box in layout.boxes.items() if name not in framed), default=float("inf"))
    for machine, names in layout.machines.items():
        held = [layout.boxes[name] for name in names]
        left, right = min(b.x - b.width / 2 for b in held), max(b.x + b.width / 2 for b in held)
        inner = [line[:, 1] for pair, line in curves.items() if set(pair) <= set(names)]
        low = min([min(b.y for b in held) - 0.28, *(line.min() - 0.1 for line in inner)])
        high = max([max(b.y for b in held) + 0.28, *(line.max() + 0.1 for line in inner)])
        style = "round,pad=0,rounding_size=0.1"
        frame = FancyBboxPatch((left - 0.12, low), right - left + 0.24, high - low, boxstyle=style)
        frame.set(facecolor="#fafafa", edgecolor="#b8b8b8", linestyle=(0, (4, 3)), linewidth=0.9, zorder=0)
        axes.add_patch(frame)
        text: dict[str, Any] = {"fontsize": 9, "color": "#555555", "family": TYPE}
        outside = high + 0.15 if low > hub else low - 0.15  # away from what joins the machines
        axes.text((left + right) / 2, outside, machine, ha="center", va="center", **text)


def _draw_links(
    axes: "Axes",
    curves: Mapping[Pair, Points],
    strokes: Mapping[Pair, Stroke],
    strands: Mapping[Pair, tuple[str, ...]],
    one_line: bool,
) -> None:
    for (a, b), line in curves.items():
        there, back = strokes.get((a, b)), strokes.get((b, a))
        if one_line and there == back and there:
            axes.plot(line[:, 0], line[:, 1], color=there.colour, lw=there.points, solid_capstyle="butt", zorder=1)
            continue
        for pair, stroke, points in (((a, b), there, line), ((b, a), back, line[::-1])):
            if pair in strands:
                for at, colour in enumerate(strands[pair]):
                    draw_arrow(axes, shifted(points, (2.0 + 3.6 * at) / 72), Stroke(colour, 2.2))
            elif stroke:
                aside = (max(there.points if there else 0, back.points if back else 0) / 2 + 0.9) / 72
                draw_arrow(axes, shifted(points, aside), stroke)


def _neighbours(strokes: Mapping[Pair, Stroke]) -> Iterator[Pair]:
    """Each pair that is wired, once; the calmest first, so that the busy ones lie on top."""
    seen: dict[Pair, None] = {}  # no set: its order, and so the picture's bytes, would differ from run to run
    for a, b in sorted(strokes, key=lambda pair: strokes[pair].points):
        if (b, a) not in seen:
            seen[a, b] = None
    # A pair is drawn when its busier direction comes.
    yield from sorted(seen, key=lambda p: max(strokes[p].points, strokes.get((p[1], p[0]), strokes[p]).points))


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
