"""Minimum arborescences, many at a time.

Edmonds' algorithm in the path-growing form of Gabow, Galil, Spencer and Tarjan (1986) for dense graphs: walk backwards
along the cheapest entering arcs, contract each cycle met, until one component is left. All problems of a batch take
their steps together, so that numpy sees rows of a batch and not single arcs.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["MISSING", "least_costs", "minimum_arborescences"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

MISSING = 1e9  # the cost of an arc that isn't there; real costs are around one


def minimum_arborescences(costs: Floats) -> tuple[Floats, Ints]:
    """The cheapest spanning arborescence out of node 0 for each b, as its cost and each node's parent (node 0: -1).

    costs[b, v, u] is the cost of the arc from u to v.
    """
    parents = _grow_trees(_choose_arcs(costs))
    batch, nodes = np.indices(parents.shape)
    paid = np.where(parents >= 0, costs[batch, nodes, parents], 0.0)
    return paid.sum(axis=1), parents


def _choose_arcs(costs: Floats) -> Ints:
    """labels[b, u, v]: in which step the arc from u to v was a component's cheapest; a large number where never."""
    batch, n, _ = costs.shape
    rows, lane = costs.copy(), np.arange(batch)
    rows[:, 0] = MISSING  # a way back into the root, so that the walk never ends early
    head = np.broadcast_to(np.arange(n)[None, :, None], costs.shape).copy()  # of the best arc from u into component v
    component = np.broadcast_to(np.arange(n), (batch, n)).copy()
    on_path = np.zeros((batch, n), dtype=bool)
    path = np.zeros((batch, n + 1), dtype=np.intp)
    top = np.zeros(batch, dtype=np.intp)
    until = np.full(batch, -1, dtype=np.intp)  # the component that closes the cycle being contracted, or -1
    parts = np.full(batch, n)
    labels = np.full((batch, n, n), 4 * n, dtype=np.intp)
    on_path[:, 0] = True
    for step in range(2 * n):
        b = lane[(until < 0) & (parts > 1)]
        if len(b):  # these walk one arc back
            v = path[b, top[b]]
            row = np.where(component[b] == v[:, None], np.inf, rows[b, v])
            u = row.argmin(axis=1)
            rows[b, v] -= row[np.arange(len(b)), u][:, None]
            labels[b, u, head[b, v, u]] = step
            came = component[b, u]
            seen = on_path[b, came]
            until[b[seen]] = came[seen]
            b, came = b[~seen], came[~seen]
            top[b] += 1
            path[b, top[b]] = came
            on_path[b, came] = True
        b = lane[until >= 0]
        if not len(b):
            if (parts <= 1).all():
                break
            continue
        v, q = path[b, top[b]], path[b, top[b] - 1]  # these take one more component into the cycle's
        mine, other = rows[b, v], rows[b, q]
        better = other < mine
        rows[b, v] = np.where(better, other, mine)
        head[b, v] = np.where(better, head[b, q], head[b, v])
        component[b] = np.where(component[b] == q[:, None], v[:, None], component[b])
        top[b] -= 1
        path[b, top[b]] = v
        on_path[b, q] = False
        parts[b] -= 1
        until[b[q == until[b]]] = -1
    return labels


def _grow_trees(labels: Ints) -> Ints:
    """From node 0, always along the arc that was chosen earliest (Fulkerson 1974).

    Arcs inside a component were chosen before those that enter it, so each component is entered exactly once.
    """
    batch, n, _ = labels.shape
    lane, never = np.arange(batch), 4 * n + 1
    parents = np.full((batch, n), -1, dtype=np.intp)
    best, via = labels[:, 0].copy(), np.zeros((batch, n), dtype=np.intp)
    inside = np.zeros((batch, n), dtype=bool)
    inside[:, 0] = True
    best[:, 0] = never
    for _ in range(n - 1):
        v = best.argmin(axis=1)
        parents[lane, v] = via[lane, v]
        inside[lane, v] = True
        best[lane, v] = never
        offered = labels[lane, v]
        better = (offered < best) & ~inside
        best = np.where(better, offered, best)
        via = np.where(better, v[:, None], via)
    return parents


def least_costs(costs: Floats, wanted: NDArray[np.bool_]) -> Floats:
    """A lower bound on the cost of any tree out of node 0 that reaches wanted[b], whatever else it passes through.

    Wong's dual ascent (1984): while a wanted node isn't reached by free arcs, raise the dual of the nodes that reach it
    by free arcs, the smallest such set first, until one more arc into that set is free. Exact where all are wanted.
    """
    lane, n = np.arange(len(costs)), costs.shape[1]
    left, total = costs.copy(), np.zeros(len(costs))
    while True:
        reaches = _closure(left <= 1e-12)  # [b, v, u]: u reaches v
        lost = wanted & ~reaches[:, :, 0]
        busy: NDArray[np.bool_] = np.logical_or.reduce(lost, axis=1)
        if not busy.any():
            return total
        target = np.where(lost, reaches.sum(axis=2), n + 1).argmin(axis=1)
        inside = reaches[lane, target]
        entering = inside[:, :, None] & ~inside[:, None, :] & busy[:, None, None]
        step = np.where(entering, left, np.inf).min(axis=(1, 2))
        step[~busy] = 0.0
        total += step
        left -= np.where(entering, step[:, None, None], 0.0)


def _closure(arcs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """From arcs to paths, by squaring; numpy multiplies small floats faster than truth values."""
    paths: NDArray[np.float32] = arcs.astype(np.float32) + np.eye(arcs.shape[1], dtype=np.float32)
    for _ in range(arcs.shape[1].bit_length()):
        paths = np.minimum(paths @ paths, 1.0)
    found: NDArray[np.bool_] = paths > 0
    return found
