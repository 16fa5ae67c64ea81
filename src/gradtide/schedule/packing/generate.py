"""Fractional packing of trees by column generation, with a certificate that nothing packs tighter.

The master programme shares the buffer out between the trees known so far such that the busiest wire is done as early
as possible. Its duals price the wires; the cheapest trees at those prices join it, until they promise nothing more.
At any prices that sum to one, what the cheapest trees cost is a lower bound on every packing: the certificate.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.packing.linear import LinearProgramme, minimise
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.price import certified_cost, price
from gradtide.schedule.packing.trees import Demand, Trees, wire_loads

__all__ = ["Packing", "pack", "root_rows"]

Floats = NDArray[np.float64]

GAP = 1e-7  # relative, between the packing and its certificate
MOST_ROUNDS = 100
SMOOTHING = 0.5  # how much of the best prices stays in the next ones (Wentges 1997): halves the rounds


@dataclass(frozen=True, eq=False)
class Packing:
    """Trees with the part of the buffer that each carries; the parts of each direction sum to one."""

    trees: Trees
    parts: Floats
    seconds_per_byte: float  # until the busiest wire is done
    bound: float  # seconds per byte that no packing can be below
    prices: Floats  # what a second of each wire is worth; they sum to one


def pack(network: WireNetwork, demand: Demand) -> Packing:
    """The best packing, as good as the gap says."""
    unit = float(network.bytes_per_s.max())
    slowness = (unit / network.bytes_per_s)[:, None]  # numbers around one keep the solver exact
    arc_loads = network.wire_load * slowness
    best_prices = np.full(len(arc_loads), 1.0 / len(arc_loads))
    known = price(network, demand, best_prices @ arc_loads)
    best, trees = known.cost, known.trees
    for _ in range(MOST_ROUNDS):
        value, parts, prices = _share_out(wire_loads(network, trees) * slowness, trees, demand)
        if value <= best * (1 + GAP):
            break
        before = len(trees)
        for kept in (SMOOTHING, 0.0):  # pure prices always give a new tree while the packing isn't the best
            tried = kept * best_prices + (1 - kept) * prices
            found = price(network, demand, tried @ arc_loads)
            if found.cost > best:
                best, best_prices = found.cost, tried
            trees = trees.joined(found.trees)
            if len(trees) > before:
                break
        else:
            break
    used = np.flatnonzero(parts > 1e-9)
    bound = certified_cost(network, demand, best_prices @ arc_loads)
    return Packing(trees.only(used), parts[used], value / unit, min(bound, value) / unit, best_prices)


def root_rows(trees: Trees, demand: Demand) -> tuple[Floats, Floats]:
    """The rows and right-hand sides that say what is rooted where: as much goes into each root as comes out of it."""
    rows = np.zeros((len(demand.shares), len(trees)))
    rows[trees.roots, np.arange(len(trees))] = 1.0
    if not demand.free:
        return rows, demand.shares
    rows[:, ~trees.inward] *= -1.0
    return np.vstack([rows, trees.inward]), np.append(np.zeros(len(rows)), 1.0)


def _share_out(loads: Floats, trees: Trees, demand: Demand) -> tuple[float, Floats, Floats]:
    """The least time of the busiest wire, each tree's part, and the wires' prices."""
    rows, sides = root_rows(trees, demand)
    programme = LinearProgramme(
        np.append(1.0, np.zeros(len(trees))),
        at_most=np.hstack([-np.ones((len(loads), 1)), loads]),
        limits=np.zeros(len(loads)),
        equal=np.hstack([np.zeros((len(rows), 1)), rows]),
        sides=sides,
    )
    answer = minimise(programme)
    return answer.value, answer.x[1:], answer.prices / answer.prices.sum()
