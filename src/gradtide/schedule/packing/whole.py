"""Whole trees that fit the wires: a search for so many trees of equal weight that no wire carries more than its share.

Rounding the parts of a packing to so many whole trees often puts one tree too many on some wire, and the whole then
takes as long as that wire does. So say beforehand how many trees each wire may carry, and send one tree after the
other, of those that cross a wire with too many, another way, until all fit. Ways are priced by how full wires are,
with some noise, so that the search doesn't run in circles; trees that are done in few steps are preferred.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.packing.generate import Packing
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.pieces import Arc, TreeGroup, arcs_of, cut, steps
from gradtide.schedule.packing.shallow import trees_at
from gradtide.schedule.packing.trees import Demand, wire_loads

__all__ = ["fitting", "least_ratios"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

RATIOS = np.arange(1.0, 1.0501, 0.0025)  # times the bound; more than the last is not worth a search
TRIES = 150  # a quarter of a second; most searches that find something are done within 100
SHORTENING = 150  # tries, after the first fit, to make it shorter
TIE = 0.01  # what a step less is worth before that: fitting comes first
STEEPNESS = 1.2  # a wire with one tree more than another costs e^1.2 times as much
NOISE = 0.3  # standard deviation of the logarithm of a price
VARIANTS = 6  # noisy prices a try
SHORTNESS = 0.05  # what a step less is worth, in trees too many on a wire
UPHILL = 0.03  # of all tries may make it worse by one
SHORTLIST = 6  # trees whose steps are counted
HOPS = (2, 3, 4, 5, 6, 8, 16)  # an odd number: every one of them in turn and not


def least_ratios(network: WireNetwork, packing: Packing, counts: Ints) -> Floats:
    """For each number of trees the least time, times the bound, that whole trees may take; infinite beyond RATIOS.

    At the packing's prices every tree costs at least the bound, so the wires' limits must be worth as much together.
    """
    limits = _limits(network, packing, counts[:, None], RATIOS[None, :])
    worth = (limits * (packing.prices / network.bytes_per_s)).sum(axis=-1)
    enough = worth >= counts[:, None] * packing.bound * (1 - 1e-9)
    return np.where(enough.any(axis=1), RATIOS[enough.argmax(axis=1)], np.inf)


def fitting(
    network: WireNetwork, demand: Demand, packing: Packing, groups: list[TreeGroup], count: int, ratio: float
) -> list[TreeGroup] | None:
    """So many trees with which no wire is busy for longer than ratio × bound, or None where none were found."""
    limits = _limits(network, packing, np.array(count), np.array(ratio))
    return _Search(network, demand, groups, count, limits).run()


def _limits(network: WireNetwork, packing: Packing, counts: Ints, ratios: Floats) -> Floats:
    """How many trees each wire, along a last axis, may carry."""
    limits: Floats = np.floor((ratios * packing.bound * counts)[..., None] * network.bytes_per_s + 1e-9)
    return limits


@dataclass(frozen=True, slots=True)
class _Way:
    """A tree another way: what it would cost, the unit with it, and its load on the wires."""

    cost: float
    unit: TreeGroup
    loads: Floats


@dataclass(frozen=True, slots=True)
class _Choice:
    """Trees to choose from, with the load of each on the wires: new ones by parents, or the one that is there."""

    loads: Floats  # wires × trees
    trees: Ints | tuple[Arc, ...]
    inward: bool

    def __len__(self) -> int:
        return int(self.loads.shape[1])

    def arcs(self, at: int) -> tuple[Arc, ...]:
        return self.trees if isinstance(self.trees, tuple) else arcs_of(self.trees[at], self.inward)


class _Search:
    def __init__(
        self, network: WireNetwork, demand: Demand, groups: list[TreeGroup], count: int, limits: Floats
    ) -> None:
        self.network, self.demand, self.limits = network, demand, limits
        self.chance = np.random.default_rng(1)  # the same request gives the same trees
        counts = cut(groups, count, per_root=not demand.free)
        self.units = [group for group, many in zip(groups, counts, strict=True) for _ in range(many)]
        self.loads = np.array([self._loads(unit.up) + self._loads(unit.down) for unit in self.units])
        self.steps = np.array([steps(unit) for unit in self.units])

    def run(self) -> list[TreeGroup] | None:
        """The units that fit and take the fewest steps of all that were met."""
        best: tuple[tuple[int, int], list[TreeGroup]] | None = None
        tries = TRIES
        while tries:
            tries -= 1
            over = self.loads.sum(axis=0) > self.limits
            if not over.any():
                tries = SHORTENING if best is None else tries
                found = (int(self.steps.max()), int(self.steps.sum()))
                best = (found, list(self.units)) if best is None or found < best[0] else best
            self._reroute(over, SHORTNESS if best else TIE)
        return best[1] if best else None

    def _reroute(self, over: NDArray[np.bool_], shortness: float) -> None:
        """Sends one unit, gathering or spreading or both, another way, if that is better."""
        weights = self.loads[:, over].sum(axis=1) if over.any() else (self.steps - self.steps.min() + 0.1) ** 2
        weights += 1e-3
        at = int(self.chance.choice(len(weights), p=weights / weights.sum()))
        total = self.loads.sum(axis=0)
        allowed = float(np.maximum(total - self.limits, 0).sum()) + shortness * self.steps[at]
        allowed += self.chance.random() < UPHILL
        ways = self._ways(self.units[at], total - self.loads[at], shortness)
        if ways:
            way = min(ways, key=lambda each: each.cost)
            if way.cost <= allowed:
                self.units[at], self.loads[at], self.steps[at] = way.unit, way.loads, steps(way.unit)

    def _ways(self, unit: TreeGroup, others: Floats, shortness: float) -> list[_Way]:
        """Units that could stand in this one's place beside the others."""
        gathers, spreads = self.demand.gathers, self.demand.spreads
        if gathers and spreads:
            gathers, spreads = ((True, False), (False, True), (True, True))[int(self.chance.integers(3))]
        roots = [unit.root]
        if gathers and spreads and self.demand.free:
            roots.append(int(self.chance.integers(len(self.network.nodes))))
        ways: list[_Way] = []
        for root in roots:
            up = self._trees(root, True, others) if gathers else self._kept(unit.up)
            down = (
                self._trees(root, False, others if gathers else others + up.loads[:, 0])
                if spreads
                else self._kept(unit.down)
            )
            loads = (up.loads[:, :, None] + down.loads[:, None, :]).reshape(len(others), -1)
            excess = np.maximum(others[:, None] + loads - self.limits[:, None], 0).sum(axis=0)
            for at in np.argsort(excess, kind="stable")[:SHORTLIST].tolist():
                found = TreeGroup(root, 0.0, up.arcs(at // len(down)), down.arcs(at % len(down)))
                ways.append(_Way(float(excess[at]) + shortness * steps(found), found, loads[:, at]))
        return ways

    def _trees(self, root: int, inward: bool, loads: Floats) -> "_Choice":
        """Trees that are cheap at noisy prices of the wires, and what each puts on them."""
        network = self.network
        prices = np.exp(STEEPNESS * np.clip(loads + 1 - self.limits, -20, 20)) + 1e-3
        noise = np.exp(NOISE * self.chance.standard_normal((VARIANTS, len(network.tails))))
        costs = np.repeat((prices @ network.wire_load) * noise, len(HOPS), axis=0)
        trees = trees_at(network, root, inward, costs / costs.max(), np.tile(HOPS, VARIANTS))
        return _Choice(wire_loads(network, trees), trees.parents, inward)

    def _kept(self, arcs: tuple[Arc, ...]) -> "_Choice":
        return _Choice(self._loads(arcs)[:, None], arcs, False)

    def _loads(self, arcs: tuple[Arc, ...]) -> Floats:
        numbers = [self.network.arc_of[arc] for arc in arcs]
        loads: Floats = self.network.wire_load[:, numbers].sum(axis=1)
        return loads
