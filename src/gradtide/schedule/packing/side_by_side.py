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

from gradtide.schedule.packing.network import Network
from gradtide.schedule.packing.pieces import Group, Step, cut, hop_loads

__all__ = ["SideBySide", "levels", "side_by_side"]

MOST_UNITS = 200
USUAL_FILLING = 0.5  # of the promised time to fill; 0.2 to 0.6 was measured on random wirings
FILLING = 0.01  # of the whole time may go into filling the pipeline; finer pieces than that only make more ops


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """One group a unit tree, in the order of roots; each carries as many pieces as there are rounds."""

    units: tuple[Group, ...]
    rounds: int
    at_most_s: float  # the promise
    seconds: float  # about what it takes: while the pipeline fills, wires are less crowded than promised

    @property
    def roots(self) -> list[int]:
        """Of each piece."""
        return [unit.root for unit in self.units for _ in range(self.rounds)]

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
    network: Network, groups: Sequence[Group], size_bytes: int, most_ops: int, owners: int
) -> SideBySide | None:
    """What promises the least time with so many ops; None where even one round takes more. 0 owners: roots are free."""
    loads, hops = hop_loads(network, list(groups)), max(len(group.up) + len(group.down) for group in groups)
    depth = max(level for group in groups for level, *_ in levels(group)) + 1
    latency_s = depth * float(network.latency_s.max())
    best: tuple[float, float, int, list[int]] | None = None
    step = max(1, owners)
    for units in range(step, min(MOST_UNITS, most_ops // hops) + 1, step):
        counts = cut(list(groups), units, per_root=owners > 0)
        moving_s = size_bytes * float((loads @ counts).max()) / units
        filling_s = (depth - 1) * moving_s
        rounds = max(1, min(most_ops // hops // units, ceil(filling_s / FILLING / (moving_s + latency_s))))
        seconds = moving_s + filling_s / rounds + latency_s
        if best is None or seconds < best[0] * (1 - 1e-3):
            best = (seconds, filling_s / rounds, rounds, counts.tolist())
    if best is None:
        return None
    at_most_s, filling_s, rounds, shares = best
    units_of = (group for group, count in zip(groups, shares, strict=True) for _ in range(count))
    return SideBySide(tuple(units_of), rounds, at_most_s, at_most_s - (1 - USUAL_FILLING) * filling_s)


def levels(group: Group) -> list[tuple[int, int, int, bool]]:
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
