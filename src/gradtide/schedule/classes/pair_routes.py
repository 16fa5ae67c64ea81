"""The routes between ranks of a grid, as rows of numbers."""

from collections.abc import Sequence
from math import fsum

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.classes.turns import Turns
from gradtide.schedule.request import NotApplicable
from gradtide.topology.model import Topology
from gradtide.topology.routes import Routes

__all__ = ["PairRoutes"]

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]


class PairRoutes:
    """The routes of pairs of ranks as rows of numbers of links and wires, found once for each distance on the grid.

    Links have the numbers that they have in the topology; wires that several links share come after them.
    """

    def __init__(self, topology: Topology, routes: Routes, ranks: Sequence[str], turns: Turns) -> None:
        self.topology, self.turns, self._routes, self._ranks = topology, turns, routes, ranks
        self._number = {id(link): at for at, link in enumerate(topology.links)}
        self.names = [f"{link.source}->{link.target}" for link in topology.links]
        rates = [link.bytes_per_s * link.count for link in topology.links]
        self._wire: dict[str, int] = {}
        for link in topology.links:
            if link.wire:
                number = self._wire.setdefault(link.wire, len(rates))
                if number == len(rates):
                    rates.append(0.0)
                    self.names.append(link.wire)
                rates[number] = max(rates[number], link.bytes_per_s * link.count)
        self.rates = np.array(rates)
        node = {each.name: at for at, each in enumerate(topology.nodes)}
        self.node_count = len(node)
        self.rank_nodes = np.array([node[name] for name in ranks])
        self.sources = np.array([node[link.source] for link in topology.links])
        self.targets = np.array([node[link.target] for link in topology.links])
        self.latencies = np.array([link.latency_s for link in topology.links])
        self.wires = np.array([self._wire.get(link.wire, -1) for link in topology.links])
        self._found: dict[int, tuple[Ints, Floats]] = {}

    def at(self, distance: int) -> tuple[Ints, Floats]:
        """For each rank the links and wires to the one at this distance, filled up with -1, and the latency."""
        if distance not in self._found:
            self._found[distance] = self._find(distance)
        return self._found[distance]

    def pair_name(self, source: int, distance: int) -> str:
        return f"{self._ranks[source]}->{self._ranks[int(self.turns.add(source, distance))]}"

    def _find(self, distance: int) -> tuple[Ints, Floats]:
        ranks, number, wire = self._ranks, self._number, self._wire
        rows: list[list[int]] = []
        latencies: list[float] = []
        for source, there in enumerate(self.turns.add(np.arange(self.turns.count), distance).tolist()):
            route = self._routes.find(ranks[source], ranks[there])
            if route is None:
                raise NotApplicable(
                    f"no link leads from {ranks[source]} to {ranks[there]} without passing through a device"
                )
            rows.append([number[id(link)] for link in route] + [wire[link.wire] for link in route if link.wire])
            latencies.append(fsum([link.latency_s for link in route]))
        longest = max(map(len, rows))
        padded = np.array([row + [-1] * (longest - len(row)) for row in rows], dtype=np.intp)
        return padded, np.array(latencies)
