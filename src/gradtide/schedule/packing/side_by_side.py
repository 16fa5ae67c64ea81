"""Trees that run side by side, each with its own lanes, and nothing but fair sharing between them.

Cut the packing into so many unit trees of equal weight, and each of these into rounds. A wire then never carries more
flows at once than unit trees cross it, and max-min fairness gives each flow at least an equal share of the most crowded
wire. So every hop takes one round at most, however routes cross, and the whole takes at most rounds + depth - 1 rounds.
That is a promise, not a guess: no simulation is needed to know that it is close to the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from gradtide.schedule.packing.generate import Packing
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.pieces import Step, TreeGroup, cut, hop_loads, steps
from gradtide.schedule.packing.trees import Demand
from gradtide.schedule.packing.whole import fitting, least_ratios

__all__ = ["SideBySide", "in_rounds", "levels", "side_by_side", "whole_trees"]

MOST_UNITS = 200
MOST_SEARCHED = 48  # more whole trees fit better, but leave fewer rounds to each
EASIER = (0.0, 0.015, 0.03)  # what is added to the least time that may be possible
SEARCHES = 8  # for other numbers of trees or in more time, before we give up
USUAL_FILLING = 0.5  # of the promised time to fill; 0.2 to 0.6 was measured on random wirings
FILLING = 0.01  # of the whole time may go into filling the pipeline; finer pieces than that only make more ops


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """One group a unit tree, in the order of roots; each carries as many pieces as there are rounds."""

    units: tuple[TreeGroup, ...]
    rounds: int
    weights: tuple[int, ...]  # of each unit
    at_most_s: float  # the promise, for units of equal weight
    seconds: float  # about what it takes: while the pipeline fills, wires are less crowded than promised

    @property
    def roots(self) -> list[int]:
        """Of each piece."""
        return [unit.root for unit in self.units for _ in range(self.rounds)]

    @property
    def piece_weights(self) -> tuple[int, ...]:
        return tuple(weight for weight in self.weights for _ in range(self.rounds))

    def steps(self) -> list[Step]:
        """Level by level, so that whoever issues ops in the order of the list has every round under way.

        Up and down have lanes of their own: one that served both on the same arc would take two rounds a piece.
        """
        places = [(unit, *hop) for unit, group in enumerate(self.units) for hop in levels(group)]
        unit, level = np.array([place[:2] for place in places]).T
        wave = level[:, None] + np.arange(self.rounds)
        order = np.lexsort((np.repeat(unit, self.rounds), np.repeat(level, self.rounds), wave.ravel()))
        steps = []
        for at in order.tolist():
            number, _, source, target, reduces = places[at // self.rounds]
            piece = number * self.rounds + at % self.rounds
            steps.append(Step(source, target, piece, reduces, channel=2 * number + (not reduces)))
        return steps


def side_by_side(
    network: WireNetwork, groups: Sequence[TreeGroup], size_bytes: int, most_ops: int, owners: int
) -> SideBySide | None:
    """What promises the least time with so many ops; None where even one round takes more. 0 owners: roots are free."""
    loads, hops = hop_loads(network, list(groups)), max(len(group.up) + len(group.down) for group in groups)
    depth = max(level for group in groups for level, *_ in levels(group)) + 1
    latency_s = depth * float(network.latency_s.max())
    best: tuple[float, list[int]] | None = None
    step = max(1, owners)
    for units in range(step, min(MOST_UNITS, most_ops // hops) + 1, step):
        counts = cut(list(groups), units, per_root=owners > 0)
        moving_s = size_bytes * float((loads @ counts).max()) / units
        filling_s, _ = _filling(moving_s, depth, latency_s, most_ops // hops // units)
        if best is None or moving_s + filling_s < best[0] * (1 - 1e-3):
            best = (moving_s + filling_s, counts.tolist())
    if best is None:
        return None
    return in_rounds(
        network, [g for g, count in zip(groups, best[1], strict=True) for _ in range(count)], size_bytes, most_ops
    )


def whole_trees(
    network: WireNetwork, demand: Demand, packing: Packing, groups: list[TreeGroup], size_bytes: int, most_ops: int
) -> SideBySide | None:
    """What a search for whole trees that fit the wires finds; None where it finds none."""
    hops = max(len(group.up) + len(group.down) for group in groups)
    step = 1 if demand.free else len({group.root for group in groups})
    counts = np.arange(step, min(MOST_SEARCHED, most_ops // hops) + 1, step)
    if not len(counts):
        return None
    ratios = least_ratios(network, packing, counts)
    filling = USUAL_FILLING * max(steps(group) for group in groups) * counts * hops / most_ops
    found = [
        (count, ratio + more, (ratio + more) * (1 + fill))
        for count, ratio, fill in zip(counts, ratios, filling, strict=True)
        for more in EASIER
    ]
    for count, ratio, _ in sorted(found, key=lambda each: float(each[2]))[:SEARCHES]:
        if ratio == np.inf:
            return None
        units = fitting(network, demand, packing, groups, int(count), float(ratio))
        if units:
            return in_rounds(network, sorted(units, key=lambda unit: unit.root), size_bytes, most_ops)
    return None


def in_rounds(
    network: WireNetwork, units: list[TreeGroup], size_bytes: int, most_ops: int, weights: Sequence[int] = ()
) -> SideBySide:
    """These unit trees, in as many rounds as so many ops allow and the filling of the pipeline is worth."""
    weights = tuple(weights) or (1,) * len(units)
    depth = max(level for unit in set(units) for level, *_ in levels(unit)) + 1
    latency_s = depth * float(network.latency_s.max())
    moving_s = size_bytes * float((hop_loads(network, units) @ weights).max()) / sum(weights)
    hops = sum(len(unit.up) + len(unit.down) for unit in units)
    filling_s, rounds = _filling(moving_s, depth, latency_s, most_ops // hops)
    at_most_s = moving_s + filling_s + latency_s
    return SideBySide(tuple(units), rounds, weights, at_most_s, at_most_s - (1 - USUAL_FILLING) * filling_s)


def _filling(moving_s: float, depth: int, latency_s: float, most_rounds: int) -> tuple[float, int]:
    """How long the pipeline takes to fill, at most, and with how many rounds."""
    filling_s = (depth - 1) * moving_s
    rounds = max(1, min(most_rounds, ceil(filling_s / FILLING / (moving_s + latency_s))))
    return filling_s / rounds, rounds


def levels(group: TreeGroup) -> list[tuple[int, int, int, bool]]:
    """(level, source, target, whether it reduces) of each hop; each level's hops wait for lower ones only.

    A node adds up one arrival at a time, whoever is ready first.
    """
    found: list[tuple[int, int, int, bool]] = []
    arrivals: dict[int, list[tuple[int, int]]] = {}  # at each node: (ready at, from whom)
    ready: dict[int, int] = {}

    def add_up(node: int) -> int:
        level = 0
        for when, source in sorted(arrivals.get(node, ())):
            level = max(level, when) + 1
            found.append((level - 1, source, node, True))
        ready[node] = level
        return level

    for source, target in group.up:  # children come before their parents
        arrivals.setdefault(target, []).append((add_up(source), source))
    add_up(group.root)
    reached = {group.root: ready[group.root]}
    for source, target in group.down:
        found.append((reached[source], source, target, False))
        reached[target] = reached[source] + 1
    return found
