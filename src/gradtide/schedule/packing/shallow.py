"""The best packing again, with trees as flat as they can be: a pipeline through them fills and empties sooner."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.packing.arborescence import MISSING
from gradtide.schedule.packing.generate import Packing, root_rows
from gradtide.schedule.packing.linear import LinearProgramme, minimise
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.price import from_root, to_names, without_idle_leaves
from gradtide.schedule.packing.trees import Demand, Trees, wire_loads

__all__ = ["flattened", "trees_at"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

ROUNDS = 8
EASY = 0.85  # a wire with no more load than that seldom keeps a piece waiting for another wire of its route
EXCESS = 4.0  # what load above that costs, in hops of mean depth
HOPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def flattened(network: WireNetwork, demand: Demand, packing: Packing, slack: float) -> Packing:
    """A packing whose busiest wire is busy for no more than `slack` longer than in the best one.

    What slack there is goes into flat trees and into wires that needn't be full: it costs least on cheap wires.
    """
    unit = float(network.bytes_per_s.max())
    slowness = (unit / network.bytes_per_s)[:, None]
    limit = packing.seconds_per_byte * unit * (1 + slack)
    trees, prices, before = packing.trees, packing.prices, np.inf
    for _ in range(ROUNDS):
        trees = trees.joined(_flat_trees(network, demand, prices @ (network.wire_load * slowness)))
        loads = wire_loads(network, trees) * slowness
        cost, parts, prices = _share_out(loads, limit, trees, demand)
        if cost > before * (1 - 1e-3):
            break
        before = cost
    used = np.flatnonzero(parts > 1e-7)
    busiest = float((loads[:, used] @ parts[used]).max()) / unit
    return replace(packing, trees=trees.only(used), parts=parts[used], seconds_per_byte=busiest)


def _share_out(loads: Floats, limit: float, trees: Trees, demand: Demand) -> tuple[float, Floats, Floats]:
    """The least mean depth and excess with no wire busy beyond the limit, each tree's part, and the wires' prices."""
    rows, sides = root_rows(trees, demand)
    wires = len(loads)
    programme = LinearProgramme(
        np.append(trees.depths(), np.full(wires, EXCESS)),
        at_most=np.hstack([loads / limit, -np.eye(wires)]),
        limits=np.full(wires, EASY),
        equal=np.hstack([rows, np.zeros((len(rows), wires))]),
        sides=sides,
        most=np.append(np.full(len(trees), np.inf), np.full(wires, 1.0 - EASY)),
    )
    answer = minimise(programme)
    prices = answer.prices
    return answer.value, answer.x[: len(trees)], prices / max(prices.sum(), 1e-12) + 1e-3 / len(prices)


def _flat_trees(network: WireNetwork, demand: Demand, arc_costs: Floats) -> Trees:
    """For each root, direction and number of hops a tree no deeper than that, as cheap as Prim's way finds it."""
    n = len(network.nodes)
    root, inward, hops = demand.cases(np.array([h for h in HOPS if h < n] or [1]))
    parents, depth = _grow(from_root(network, arc_costs, root, inward), hops)
    devices = (np.arange(n) + root[:, None]) % n < network.devices
    spans = ((depth <= n) | ~devices).all(axis=1)
    trees = Trees(inward[spans], root[spans], to_names(parents[spans], root[spans]))
    return without_idle_leaves(trees, network)


def trees_at(network: WireNetwork, root: int, inward: bool, arc_costs: Floats, hops: Ints) -> Trees:
    """Trees at this root, cheap at arc_costs[b] and no deeper than hops[b], for those b that have one."""
    n = len(network.nodes)
    costs = np.full((len(hops), n, n), MISSING)  # of the arc between a node and its parent
    heads, tails = (network.tails, network.heads) if inward else (network.heads, network.tails)
    costs[:, heads, tails] = arc_costs
    names = (np.arange(n) + root) % n
    in_turn = np.arange(len(hops)) % 2 == 0 if inward else None  # others are deep, but may fit where these don't
    parents, depth = _grow(costs[:, names[:, None], names], hops, in_turn)
    spans = ((depth <= n) | (names >= network.devices)).all(axis=1)
    roots = np.full(int(spans.sum()), root)
    trees = Trees(np.full(len(roots), inward), roots, to_names(parents[spans], roots))
    return without_idle_leaves(trees, network)


def _grow(costs: Floats, hops: Ints, in_turn: NDArray[np.bool_] | None = None) -> tuple[Ints, Ints]:
    """Trees out of node 0: always the cheapest arc next that doesn't go deeper than hops[b]. Parents and depths.

    Where in_turn[b], a node sends to one child after the other, and a child is as deep as its turn is late: backwards,
    that is how a node adds up one arrival at a time.
    """
    batch, n, _ = costs.shape
    turns = np.zeros(batch, dtype=np.intp) if in_turn is None else in_turn.astype(np.intp)
    parents = np.full((batch, n), -1, dtype=np.intp)
    depth = np.full((batch, n), n + 1, dtype=np.intp)
    depth[:, 0] = 0
    used = np.full((batch, n), 2 * n, dtype=np.intp)  # the depth of a node's next child, less one
    used[:, 0] = 0
    best, via = costs[:, :, 0].copy(), np.zeros((batch, n), dtype=np.intp)
    best[:, 0] = np.inf
    for _ in range(n - 1):
        b = np.flatnonzero(best.min(axis=1) < MISSING / 2)
        v = best[b].argmin(axis=1)
        u = via[b, v]
        parents[b, v] = u
        depth[b, v] = used[b, v] = used[b, u] + 1
        used[b, u] += turns[b]
        best[b, v] = np.inf
        full = b[(turns[b] > 0) & (used[b, u] >= hops[b])]
        b, v = b[depth[b, v] < hops[b]], v[depth[b, v] < hops[b]]
        offered = costs[b, :, v]
        better = (offered < best[b]) & (depth[b] > n)
        best[b] = np.where(better, offered, best[b])
        via[b] = np.where(better, v[:, None], via[b])
        if len(full):  # a parent has no turn left: look again who offers what
            open_costs = np.where((used[full] < hops[full, None])[:, None, :], costs[full], np.inf)
            via[full] = open_costs.argmin(axis=2)
            best[full] = np.where(depth[full] > n, open_costs.min(axis=2), np.inf)
    return parents, depth
