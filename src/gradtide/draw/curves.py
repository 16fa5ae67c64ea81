"""The way a link takes across a drawing: straight where nothing is in between, else around it."""

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from gradtide.draw.layout import Box, NodeLayout

__all__ = ["Points", "between", "lines_of", "shifted"]

Points = NDArray[np.float64]  # (n, 2), in inches
CLEAR = 0.07  # inches kept from the boxes of others
BENDS = (0.0, *(side * bend for bend in (0.1, 0.15, 0.2, 0.27, 0.34, 0.42, 0.5, 0.6, 0.8, 1.1) for side in (1, -1)))
DEEPER = (1.0, 1.4, 2.0, 3.0)
STEPS = np.linspace(0.0, 1.0, 121)[:, None]


def lines_of(
    layout: NodeLayout, pairs: Iterable[tuple[str, str]], devices: Collection[str]
) -> dict[tuple[str, str], Points]:
    """The line of each pair that is wired. In tiers, devices of a row are wired on its free side, and so are machines
    whose NICs stand in a row: such a line crosses no frame."""
    boxes, lines = layout.boxes, {}
    home = {name: machine for machine, names in layout.machines.items() for name in names}
    middle = (min(box.y for box in boxes.values()) + max(box.y for box in boxes.values())) / 2
    for a, b in pairs:
        others = [box for name, box in boxes.items() if name not in (a, b)]
        level = layout.tiered and boxes[a].y == boxes[b].y
        if level and ((a in devices and b in devices) or home.get(a) != home.get(b)):
            lines[a, b] = _arc(boxes[a], boxes[b], others, boxes[a].y >= middle)
        elif layout.loops and any(_is_between(box, boxes[a], boxes[b]) for box in others):
            lines[a, b] = _loop(boxes[a], boxes[b])
        else:
            lines[a, b] = between(boxes[a], boxes[b], others, layout.tiered, layout.core)
    return lines


def between(a: Box, b: Box, others: Collection[Box], tiered: bool = False, core: float = 0.0) -> Points:
    """A line from the edge of a to the edge of b that is clear of the other boxes: the least bend that does it.

    Between tiers it goes from the bottom of one to the top of the other. Between two boxes outside of the circle of
    radius `core` it also stays out of that.
    """
    corners = _corners(others)
    start, end = _ports(a, b) if tiered and a.y != b.y else ((a.x, a.y), (b.x, b.y))
    outside = min(np.hypot(*start), np.hypot(*end)) > core * 1.05
    for bend in BENDS:
        curve = _outside(_bent(start, end, bend), a, b)
        crosses = outside and np.min(np.hypot(curve[:, 0], curve[:, 1])) < core
        if not crosses and not _hits(curve, corners):
            return curve
    return _outside(_bent(start, end, 0.0), a, b)


def _arc(a: Box, b: Box, others: Collection[Box], up: bool) -> Points:
    """Between two boxes of a row, from the tops of both over what stands between them (or below it). The nearer the
    other, the nearer its side: so arcs over each other don't cross."""
    corners, sign, apart = _corners(others), 1 if up else -1, abs(b.x - a.x)
    left, right = (a, b) if a.x < b.x else (b, a)
    near = 0.4 / (1 + 0.4 * max(0.0, apart - (a.width + b.width) / 2))
    start = np.array([left.x + near * left.width, left.y + sign * left.height / 2])
    end = np.array([right.x - near * right.width, right.y + sign * right.height / 2])
    for deeper in DEEPER:
        aside = np.array([0.0, sign * deeper * (0.12 + 0.19 * apart) / 0.75])
        curve = _cubic(start, start + aside, end + aside, end)
        if not _hits(curve, corners):
            break
    return curve if left is a else curve[::-1]


def _is_between(box: Box, a: Box, b: Box) -> bool:
    """Whether it stands in the way of two boxes of its row or column."""
    row, column = a.y == b.y == box.y, a.x == b.x == box.x
    return (row and min(a.x, b.x) < box.x < max(a.x, b.x)) or (column and min(a.y, b.y) < box.y < max(a.y, b.y))


def _loop(a: Box, b: Box) -> Points:
    """From one end of a row to the other, above what is in between; of a column, on its right, around all of it."""
    flat = a.y == b.y
    first, last = (a, b) if (a.x, -a.y) < (b.x, -b.y) else (b, a)
    along = np.array([1.0, 0.0]) if flat else np.array([0.0, -1.0])
    aside = np.array([0.0, 1.0]) if flat else np.array([1.0, 0.0])
    edge, inset = (a.height / 2, 0.28 * a.width) if flat else (a.width / 2, -0.34 * a.height)
    start = np.array([first.x, first.y]) + edge * aside + inset * along
    end = np.array([last.x, last.y]) + edge * aside - inset * along
    out, turn = 0.55 * a.height * aside, 0.65 * a.height * along
    rise = _cubic(start, start + out, start + out, start + out + turn)
    fall = _cubic(end + out - turn, end + out, end + out, end)
    loop = np.concatenate([rise, fall])
    return loop if first is a else loop[::-1]


def _ports(a: Box, b: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a link leaves a for b: the narrower box's middle, and the point of the wider one that is nearest to it."""
    if a.width < b.width:
        end, start = _ports(b, a)
        return start, end
    most = a.width / 2 - 0.15
    x = min(max(b.x, a.x - most), a.x + most)
    up = 1 if b.y > a.y else -1
    return (x, a.y + up * a.height / 2), (b.x, b.y - up * b.height / 2)


def shifted(points: Points, inches: float) -> Points:
    """The same line moved to its right-hand side, so that two directions can be drawn side by side."""
    along = np.gradient(points, axis=0)
    along /= np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-12)[:, None]
    return points + inches * np.column_stack([along[:, 1], -along[:, 0]])


def _bent(first: tuple[float, float], last: tuple[float, float], bend: float) -> Points:
    """A cubic Bézier curve, whose middle is off the straight line by `bend` of its length."""
    start, end = np.array(first), np.array(last)
    along = end - start
    aside = np.array([-along[1], along[0]]) * bend / 0.75
    return _cubic(start, start + 0.15 * along + aside, end - 0.15 * along + aside, end)


def _cubic(start: Points, first: Points, last: Points, end: Points) -> Points:
    t, u = STEPS, 1 - STEPS
    curve: Points = u**3 * start + 3 * u**2 * t * first + 3 * u * t**2 * last + t**3 * end
    return curve


def _outside(points: Points, a: Box, b: Box) -> Points:
    """Without what is under the two boxes."""
    keep = ~(_inside(points, a) | _inside(points, b))
    return points[keep] if keep.sum() >= 2 else points[len(points) // 3 : -len(points) // 3]


def _inside(points: Points, box: Box) -> NDArray[np.bool_]:
    off = np.abs(points - np.array([box.x, box.y]))
    inside: NDArray[np.bool_] = (off[:, 0] < box.width / 2 + 0.03) & (off[:, 1] < box.height / 2 + 0.03)
    return inside


def _corners(boxes: Collection[Box]) -> Points:
    rows = [(b.x, b.y, b.width / 2 + CLEAR, b.height / 2 + CLEAR) for b in boxes]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _hits(points: Points, corners: Points) -> bool:
    off = np.abs(points[:, None, :] - corners[None, :, :2])
    return bool(np.any(np.all(off < corners[None, :, 2:], axis=2)))
