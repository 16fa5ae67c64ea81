"""The way a message takes: the links from one node to another, through switches, NICs and hosts."""

import heapq
from collections import defaultdict

from gradtide.topology.model import Link, NodeKind, Topology

__all__ = ["Route", "Routes"]

Route = tuple[Link, ...]


class Routes:
    """The route of each pair of nodes: least latency first, then fewest links, then the widest narrowest link.

    A device never passes traffic on: where no route exists, a schedule must copy in several ops.
    """

    def __init__(self, topology: Topology) -> None:
        self._passes = {node.name: node.kind is not NodeKind.DEVICE for node in topology.nodes}
        self._out: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            self._out[link.source].append(link)
        self._from: dict[str, dict[str, Route]] = {}

    def find(self, source: str, target: str) -> Route | None:
        """The links from source to target, or None where none lead there."""
        if source not in self._from:
            self._from[source] = self._search(source)
        return self._from[source].get(target)

    def _search(self, source: str) -> dict[str, Route]:
        best: dict[str, Route] = {}
        queue: list[tuple[float, int, float, int, str, Route]] = [(0.0, 0, 0.0, 0, source, ())]
        pushed = 0
        while queue:
            latency_s, hops, narrowest, _, node, route = heapq.heappop(queue)
            if node in best:
                continue
            best[node] = route
            if node != source and not self._passes[node]:
                continue
            for link in self._out[node]:
                if link.target not in best:
                    pushed += 1
                    width = -link.bytes_per_s * link.count
                    width = max(narrowest, width) if route else width
                    entry = (latency_s + link.latency_s, hops + 1, width, pushed, link.target, (*route, link))
                    heapq.heappush(queue, entry)
        del best[source]
        return best
