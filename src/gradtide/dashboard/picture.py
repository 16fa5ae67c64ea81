"""The topology with the loads of its links, as the planner draws it."""

import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from gradtide.topology.model import Link, Node, NodeKind, Topology

__all__ = ["Picture", "topology_of"]

_REST_S = 10.0  # between two drawings: one takes a fifth of a second of a core
_CHANGED = 0.1  # of a link's part of all bytes, from which on it is drawn again
_LINK = (10e9, 2e-6)  # bytes/s and latency: all alike, so that colours show bytes
_MOST = 64  # members; beyond that the table has to do

Pair = tuple[str, str]


class Picture:
    """An SVG that is drawn again when the loads have shifted."""

    def __init__(self) -> None:
        self.version = 0
        self._svg, self._lock = b"", threading.Lock()
        self._parts: dict[Pair, float] = {}
        self._drawn_s = float("-inf")

    @property
    def svg(self) -> bytes:
        with self._lock:
            return self._svg

    def draw(self, loads: Mapping[Pair, float]) -> bool:
        """Whether there is a new one."""
        total = sum(loads.values())
        if not total or len({name for pair in loads for name in pair}) > _MOST:
            return False
        parts = {pair: size / total for pair, size in loads.items()}
        shifted = parts.keys() != self._parts.keys() or any(abs(parts[p] - self._parts[p]) > _CHANGED for p in parts)
        if not shifted or time.monotonic() - self._drawn_s < _REST_S:
            return False
        self._parts, self._drawn_s = parts, time.monotonic()
        svg = _draw(loads)
        with self._lock:
            self._svg, self.version = svg, self.version + 1
        return True


def topology_of(loads: Mapping[Pair, float]) -> Topology:
    """Who sends to whom: workers as devices, servers as hosts."""
    names = sorted({name for pair in loads for name in pair})
    kinds = {name: NodeKind.DEVICE if name.startswith("worker ") else NodeKind.HOST for name in names}
    pairs = {tuple(sorted(pair)) for pair in loads}
    links = [Link(*ends, *_LINK) for a, b in sorted(pairs) for ends in ((a, b), (b, a))]
    return Topology("bytes sent", tuple(Node(name, kinds[name], "") for name in names), tuple(links))


def _draw(loads: Mapping[Pair, float]) -> bytes:
    from gradtide.draw import draw_topology

    with tempfile.TemporaryDirectory(prefix="gradtide-picture-") as folder:
        path = Path(folder) / "topology.svg"
        draw_topology(topology_of(loads), path, loads, title="bytes sent and pulled", rated=False)
        return path.read_bytes()
