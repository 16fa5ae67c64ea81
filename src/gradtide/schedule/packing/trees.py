"""Trees as arrays, and which of them a collective takes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.request import Request

__all__ = ["Demand", "Trees", "demand_of", "wire_loads"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Demand:
    """What a collective asks of trees."""

    gathers: bool  # trees into roots, that reduce
    spreads: bool  # trees out of roots, that copy
    shares: Floats  # the part of the buffer rooted at each node; if roots are free, which nodes may be one
    free: bool = False

    def cases(self, variants: Ints) -> tuple[Ints, NDArray[np.bool_], Ints]:
        """Each root with each direction with each variant."""
        ways = np.array([True] * self.gathers + [False] * self.spreads)
        grid = np.meshgrid(np.flatnonzero(self.shares), ways, variants, indexing="ij")
        return grid[0].ravel(), grid[1].ravel(), grid[2].ravel()

    def cost(self, tree_costs: Floats) -> float:
        """What a packing of the cheapest trees costs, given the least cost for each root and direction."""
        each = tree_costs.reshape(-1, self.gathers + self.spreads).sum(axis=1)
        return float(each.min() if self.free else each @ self.shares[np.flatnonzero(self.shares)])


@dataclass(frozen=True, eq=False)
class Trees:
    """One row a tree. A node's parent is -1 at the root, and at a host that takes no part."""

    inward: NDArray[np.bool_]
    roots: Ints
    parents: Ints

    def __len__(self) -> int:
        return len(self.roots)

    def only(self, kept: NDArray[np.bool_] | Ints) -> "Trees":
        return Trees(self.inward[kept], self.roots[kept], self.parents[kept])

    def depths(self) -> Ints:
        """How many hops each tree is deep."""
        deep, above = np.zeros(len(self), dtype=np.intp), self.parents
        while (above >= 0).any():
            deep += (above >= 0).any(axis=1)
            above = np.where(above >= 0, np.take_along_axis(self.parents, np.maximum(above, 0), axis=1), -1)
        return deep

    def joined(self, other: "Trees") -> "Trees":
        """These trees, then those of the other that are new."""
        both = Trees(
            np.concatenate([self.inward, other.inward]),
            np.concatenate([self.roots, other.roots]),
            np.concatenate([self.parents, other.parents]),
        )
        first: dict[bytes, int] = {}  # not np.unique: that loads numpy.ma, which takes longer than all of this
        for at, tree in enumerate(np.column_stack([both.inward, both.roots, both.parents])):
            first.setdefault(tree.tobytes(), at)
        return both.only(np.array(list(first.values())))


def demand_of(request: Request, network: WireNetwork) -> Demand:
    """Free roots for all_reduce, the asked root for broadcast and reduce, equal shares for the other two."""
    collective, shares = request.collective, np.zeros(len(network.nodes))
    if collective == "all_reduce":
        return Demand(gathers=True, spreads=True, shares=np.ones(len(network.nodes)), free=True)
    if collective in ("broadcast", "reduce"):
        shares[request.root] = 1.0
    else:
        shares[: network.devices] = 1.0 / network.devices
    spreads = collective in ("broadcast", "all_gather")
    return Demand(gathers=not spreads, spreads=spreads, shares=shares)


def wire_loads(network: WireNetwork, trees: Trees) -> Floats:
    """wires × trees: the bytes on each wire per byte that a tree carries."""
    nodes, parents = np.arange(len(network.nodes)), trees.parents
    arcs = np.where(trees.inward[:, None], network.arc_of[nodes, parents], network.arc_of[parents, nodes])
    of_arc = np.vstack([network.wire_load.T, np.zeros(len(network.wires))])  # the last row is for what is no arc
    loads: Floats = of_arc[np.where(parents >= 0, arcs, -1)].sum(axis=1).T
    return loads
