"""The way a link takes across a drawing: straight where nothing is in between, else around it."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.layout import Box

__all__ = ["Points", "between", "shifted"]

Points = NDArray[np.float64]  # (n, 2), in inches
CLEAR = 0.07  # inches kept from the boxes of others
BENDS = (0.0, 0.14, -0.14, 0.25, -0.25, 0.4, -0.4, 0.6, -0.6, 0.9, -0.9, 1.3, -1.3)
STEPS = np.linspace(0.0, 1.0, 121)[:, None]


def between(a: Box, b: Box, others: Collection[Box]) -> Points:
    """A line from the edge of a to the edge of b that is clear of the other boxes: the least bend that does it."""
    corners = _corners(others)
    curves = (_outside(_bent(a, b, bend), a, b) for bend in BENDS)
    first = None
    for curve in curves:
        first = curve if first is None else first
        if not _hits(curve, corners):
            return curve
    assert first is not None
    return first


def shifted(points: Points, inches: float) -> Points:
    """The same line moved to its right-hand side, so that two directions can be drawn side by side."""
    along = np.gradient(points, axis=0)
    along /= np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-12)[:, None]
    return points + inches * np.column_stack([along[:, 1], -along[:, 0]])


def _bent(a: Box, b: Box, bend: float) -> Points:
    """A quadratic Bézier curve from middle to middle, whose control point is off by `bend` of its length."""
    start, end = np.array([a.x, a.y]), np.array([b.x, b.y])
    aside = np.array([start[1] - end[1], end[0] - start[0]]) * bend
    control = (start + end) / 2 + aside * 2
    curve: Points = (1 - STEPS) ** 2 * start + 2 * STEPS * (1 - STEPS) * control + STEPS**2 * end
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
