"""The way a link takes across a drawing: straight where nothing is in between, else around it."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from gradtide.draw.layout import Box

__all__ = ["Points", "between", "shifted"]

Points = NDArray[np.float64]  # (n, 2), in inches
CLEAR = 0.07  # inches kept from the boxes of others
BENDS = (0.0, *(side * bend for bend in (0.1, 0.15, 0.2, 0.27, 0.34, 0.42, 0.5, 0.6, 0.8, 1.1) for side in (1, -1)))
STEPS = np.linspace(0.0, 1.0, 121)[:, None]


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
    controls = start + 0.15 * along + aside, end - 0.15 * along + aside
    t, u = STEPS, 1 - STEPS
    curve: Points = u**3 * start + 3 * u**2 * t * controls[0] + 3 * u * t**2 * controls[1] + t**3 * end
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
