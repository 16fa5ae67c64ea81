"""The cheapest trees at given prices of the wires, and the bound on every packing that they prove."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.packing.arborescence import MISSING, least_costs, minimum_arborescences
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.trees import Demand, Trees

__all__ = ["Priced", "certified_cost", "from_root", "price", "to_names", "without_idle_leaves"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]

MOST_HOSTS = 3  # up to so many, every subset of them is tried as a tree's helpers, and costs are exact


@dataclass(frozen=True, eq=False)
class Priced:
    """The cheapest trees, and what the cheapest packing costs."""

    trees: Trees
    cost: float


def price(network: WireNetwork, demand: Demand, arc_costs: Floats) -> Priced:
    """For each root and direction the cheapest tree that spans the devices, with whichever hosts make it cheaper."""
    helpers = _subsets(len(network.nodes) - network.devices)
    root, inward, subset = demand.cases(np.arange(len(helpers)))
    costs = from_root(network, arc_costs, root, inward)
    idle = _idle(network, root, helpers[subset])
    costs[np.broadcast_to(idle[:, None, :], costs.shape)] = MISSING  # an idle host is a leaf that hangs on the root
    costs[idle] = MISSING
    costs[:, :, 0][idle] = 0.0
    paid, parents = minimum_arborescences(costs)
    parents[idle] = -1
    shape = (-1, len(helpers))
    paid = paid.reshape(shape)
    best = np.arange(len(root)).reshape(shape)[np.arange(len(paid)), paid.argmin(axis=1)]
    best = best[paid.min(axis=1) < MISSING / 2]
    trees = Trees(inward[best], root[best], to_names(parents[best], root[best]))
    return Priced(without_idle_leaves(trees, network), demand.cost(paid.min(axis=1)))


def certified_cost(network: WireNetwork, demand: Demand, arc_costs: Floats) -> float:
    """A true lower bound on what any packing costs at these prices, however many hosts there are."""
    if len(network.nodes) - network.devices <= MOST_HOSTS:
        return price(network, demand, arc_costs).cost
    root, inward, _ = demand.cases(np.zeros(1, dtype=np.intp))
    n = len(network.nodes)
    wanted = (np.arange(n) + root[:, None]) % n < network.devices
    return demand.cost(least_costs(from_root(network, arc_costs, root, inward), wanted))


def from_root(network: WireNetwork, arc_costs: Floats, root: Ints, inward: Flags) -> Floats:
    """costs[b, v, u] of arc u -> v (inward: v -> u), with nodes counted on from root[b], which becomes node 0.

    Counting from the root makes ties fall differently for each root, which spreads equally cheap trees over all wires.
    """
    n = len(network.nodes)
    entering = np.full((n, n), MISSING)
    entering[network.heads, network.tails] = arc_costs
    names = (np.arange(n) + root[:, None]) % n
    v, u = names[:, :, None], names[:, None, :]
    costs: Floats = np.where(inward[:, None, None], entering[u, v], entering[v, u])
    return costs


def to_names(parents: Ints, root: Ints) -> Ints:
    """Parents of nodes counted from root[b], as parents of nodes counted from node 0."""
    n = parents.shape[1]
    named = np.where(parents >= 0, (parents + root[:, None]) % n, -1)
    place = (np.arange(n) - root[:, None]) % n
    return np.take_along_axis(named, place, axis=1)


def without_idle_leaves(trees: Trees, network: WireNetwork) -> Trees:
    """A host that passes nothing on only costs: cut it off, and so on upwards."""
    parents, hosts = trees.parents.copy(), range(network.devices, len(network.nodes))
    for _ in hosts:
        for host in hosts:
            parents[~(parents == host).any(axis=1), host] = -1
    return Trees(trees.inward, trees.roots, parents)


def _idle(network: WireNetwork, root: Ints, helps: Flags) -> Flags:
    n = len(network.nodes)
    idle = np.zeros((len(root), n), dtype=bool)
    idle[:, network.devices :] = ~helps
    counted = np.take_along_axis(idle, (np.arange(n) + root[:, None]) % n, axis=1)
    counted[:, 0] = False
    return counted


def _subsets(hosts: int) -> Flags:
    """Which hosts may help: all subsets of a few; of many just none, all and each one."""
    if hosts <= MOST_HOSTS:
        return (np.arange(2**hosts)[:, None] >> np.arange(hosts) & 1).astype(bool)
    return np.concatenate([np.zeros((1, hosts), bool), np.ones((1, hosts), bool), np.eye(hosts, dtype=bool)])
