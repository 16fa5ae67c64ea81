"""Rings and trees one by one: a small picture of each, in its colour, below the picture of the links."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradtide.draw.curves import lines_of
from gradtide.draw.layout import Box, NodeLayout, lay_out
from gradtide.draw.sizes import colour_of
from gradtide.draw.strokes import EDGE, FILL, TYPE, Pair, Stroke, draw_arrow
from gradtide.topology.model import Link, Node, NodeKind, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panels", "RingOrTree", "strands_of"]

MOST = 12  # panels; the ways that carry least have none
MOST_BOXES = 16  # of a panel: with more it is no small picture
MOST_STRANDS = 3  # side by side in one arrow: with more, the arrow shows how busy the link is instead
ABOVE, HEAD, BELOW, APART = 0.3, 0.3, 0.15, 0.35  # inches: the caption, a panel's title, below them, between them
SMALL, LETTER = 0.22, 0.082  # inches: the height of a box, a letter of 7.5 points
ROOM = 0.2  # between boxes, for an arrow
NARROWEST, WIDEST, COLUMNS = 1.2, 12.5, 4  # a panel, whose title is as wide; a row of panels; and how many they are


@dataclass(frozen=True, slots=True)
class RingOrTree:
    """A ring or a tree: who sends to whom, and over which links."""

    name: str  # ring 1
    share: float  # of all bytes
    pairs: tuple[Pair, ...]
    back: tuple[Pair, ...] = ()  # on which the sum comes back, where that is not `pairs` the other way round
    root: str = ""  # where a tree adds up
    links: frozenset[Pair] = frozenset()


def strands_of(ways: Sequence[RingOrTree]) -> dict[Pair, tuple[str, ...]]:
    """The colours of the ways that use each link; nothing where they are too many for one picture."""
    found: dict[Pair, tuple[str, ...]] = {}
    for number, way in enumerate(ways):
        for link in way.links:
            found[link] = (*found.get(link, ()), colour_of(number))
    few = 1 < len(ways) <= MOST and max(map(len, found.values()), default=0) <= MOST_STRANDS
    return found if few else {}


class Panels:
    """A panel for each way, all with the same places; knows how much room they take before anything is drawn."""

    def __init__(self, ways: Sequence[RingOrTree], topology: Topology, width: float) -> None:
        there = {name for way in ways for pair in way.pairs for name in pair}
        self._ways = ways[:MOST] if len(ways) > 1 and len(there) <= MOST_BOXES else ()
        self.height = self.width = 0.0
        if not self._ways:
            return
        self._more = len(ways) - len(self._ways), sum(way.share for way in ways[MOST:])
        self._kinds = {node.name: node.kind for node in topology.nodes}
        self._layout = _small_layout(ways, topology)
        boxes = self._layout.boxes.values()
        aside = 0.3 if self._layout.loops else 0.1
        self._left, self._right = min(b.x - b.width / 2 for b in boxes), max(b.x + b.width / 2 for b in boxes) + aside
        self._low, self._high = min(b.y for b in boxes) - SMALL, max(b.y for b in boxes) + aside + SMALL / 2
        self._step, self._tall = max(self._right - self._left, NARROWEST) + APART, self._high - self._low + HEAD
        self._columns = max(1, min(len(self._ways), COLUMNS, int(max(width, WIDEST) / self._step)))
        self._rows = -(-len(self._ways) // self._columns)
        self.width, self.height = self._columns * self._step, self._rows * self._tall + BELOW + ABOVE

    def draw(self, figure: "Figure") -> None:
        if not self._ways:
            return
        wide, high = figure.get_size_inches()
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "family": TYPE, "style": "italic"}
        figure.text(0.5, (self.height - ABOVE / 2) / high, self._caption(), **text)
        for at, way in enumerate(self._ways):
            row, column = divmod(at, self._columns)
            x = (wide - self._step * self._columns) / 2 + self._step * column
            y = BELOW + self._tall * (self._rows - 1 - row)
            axes = figure.add_axes((x / wide, y / high, self._step / wide, self._tall / high))
            middle = (self._left + self._right) / 2
            axes.set(xlim=(middle - self._step / 2, middle + self._step / 2), ylim=(self._low, self._low + self._tall))
            axes.axis("off")
            axes.set_gid(way.name.replace(" ", "-"))
            self._draw_panel(axes, way, colour_of(at))

    def _caption(self) -> str:
        kind = "tree" if self._ways[0].root else "ring"
        frame = "; it adds up towards the thick frame" if kind == "tree" else ""
        frame += ", and the sum takes thin arrows on its way back" if any(way.back for way in self._ways) else ""
        more = f"; {self._more[0]} more carry {_percent(self._more[1])}" if self._more[0] else ""
        return f"each {kind} and its share of all bytes{frame}{more}"

    def _draw_panel(self, axes: "Axes", way: RingOrTree, colour: str) -> None:
        text: dict[str, Any] = {"ha": "center", "va": "center", "family": TYPE}
        middle, title = (self._left + self._right) / 2, f"{way.name}: {_percent(way.share)}"
        axes.text(middle, self._high + HEAD / 3, title, fontsize=9, color=colour, fontweight="bold", **text)
        lines = lines_of(self._layout, [*way.pairs, *way.back], self._layout.boxes)
        for pair in (*way.back, *way.pairs):
            draw_arrow(axes, lines[pair], Stroke(colour, 1.6 if pair in way.pairs else 0.7))
        for name in dict.fromkeys(name for pair in lines for name in pair):
            box = self._layout.boxes[name]
            _draw_box(axes, box, self._kinds[name], colour if name == way.root else "")
            axes.text(box.x, box.y - 0.01, box.text, fontsize=7.5, zorder=4, **text)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _draw_box(axes: "Axes", box: Box, kind: NodeKind, root: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner, corners = (box.x - box.width / 2, box.y - box.height / 2), 0.07 if kind is NodeKind.DEVICE else 0.01
    patch = FancyBboxPatch(corner, box.width, box.height, boxstyle=f"round,pad=0,rounding_size={corners}", zorder=3)
    patch.set(facecolor=FILL[kind], edgecolor=root or EDGE[kind], linewidth=2.4 if root else 0.9)
    axes.add_patch(patch)


def _small_layout(ways: Sequence[RingOrTree], topology: Topology) -> NodeLayout:
    """Those who send and receive, where the large picture has them, as far as that is possible; names without what
    all of them begin and end with."""
    pairs = dict.fromkeys(pair for way in ways for pair in (*way.pairs, *way.back))
    there = {name for pair in pairs for name in pair}
    nodes = tuple(Node(node.name, NodeKind.DEVICE) for node in topology.nodes if node.name in there)
    wired = tuple(link for link in topology.links if {link.source, link.target} <= there)
    layout = lay_out(Topology("", nodes, wired or tuple(Link(*pair, 1.0, 0.0) for pair in pairs)))
    texts = _short(list(layout.boxes))
    widths = {name: max(SMALL, LETTER * len(text) + 0.08) for name, text in texts.items()}
    boxes, scale = layout.boxes, 0.3
    while _overlap(boxes, widths, scale):
        scale *= 1.05
    small = {name: Box(box.x * scale, box.y * scale, widths[name], texts[name], SMALL) for name, box in boxes.items()}
    return NodeLayout(small, {}, tiered=False, loops=layout.loops)


def _overlap(boxes: Mapping[str, Box], widths: Mapping[str, float], scale: float) -> bool:
    names = list(boxes)
    return any(
        abs(boxes[a].x - boxes[b].x) * scale < (widths[a] + widths[b]) / 2 + ROOM
        and abs(boxes[a].y - boxes[b].y) * scale < SMALL + ROOM
        for at, a in enumerate(names)
        for b in names[:at]
    )


def _short(names: Collection[str]) -> dict[str, str]:
    """
    >>> _short(["gpu0", "gpu1"])
    {'gpu0': '0', 'gpu1': '1'}
    """
    start = _common(names)
    end = _common([name[:start:-1] for name in names])
    return {name: name[start : len(name) - end] or name for name in names}


def _common(names: Collection[str]) -> int:
    """How many characters all begin with, without the digits at the end of these."""
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return len("".join(letters[0] for letters in alike).rstrip("0123456789"))
