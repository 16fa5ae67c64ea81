"""The best chain of stages under a limit: dynamic programming over units and devices.

State: the units from `first` on, on the devices from `offset` on (any that are left over are unused). A stage that
takes it further has a cost that is added up, and a rest that may not be above the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gradtide.schedule.step.choice.intervals import Triangle

__all__ = ["ChainStage", "Sweep"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChainStage:
    """A stage of a chain that was found."""

    first: int
    last: int
    offset: int
    size: int  # its place in the list of sizes
    layer: int  # stages from this one on, itself included; the deepest layer stands for all that are deeper


class Sweep:
    """Finds chains. `rows[size, offset]` is the row of costs that a stage of that many devices has there, or -1."""

    def __init__(self, triangle: Triangle, sizes: Sequence[int], rows: npt.NDArray[np.int64]) -> None:
        self.triangle, self.sizes = triangle, tuple(sizes)
        self.devices = rows.shape[1] - 1
        self._alike = all(len(set(row[row >= 0])) <= 1 for row in rows)
        self._rows = np.maximum(rows, 0)
        self._first_rows = np.array([row[row >= 0][0] if (row >= 0).any() else 0 for row in rows])

    def best(self, costs: Sequence[Array]) -> tuple[float, list[ChainStage]]:
        """The least sum of costs, and its stages. `costs[layer - 1]` has a row a place and a column a stage of the
        model; with one layer it is the same however many stages follow. No stages where there is no chain."""
        units, width = self.triangle.units, self.devices + 1
        below = np.full((units + 1, width), np.inf)
        below[units] = 0.0
        layers, befores = list[Array](), list[Array]()
        for depth, cost in enumerate(costs, start=1):
            reached, before = self._layer(cost, below, repeated=depth == len(costs))
            layers.append(reached)
            befores.append(before)
            below = reached
        begin = min(range(len(layers)), key=lambda layer: layers[layer][0, 0])
        seconds = float(layers[begin][0, 0])
        return seconds, self._chain(costs, layers, befores, begin) if np.isfinite(seconds) else []

    def _layer(self, cost: Array, below: Array, *, repeated: bool) -> tuple[Array, Array]:
        """One more stage before chains of `below`, or (repeated) any number of them: the least sums, and what they
        were added to, by next unit, size and device."""
        units, width = self.triangle.units, self.devices + 1
        reached = np.full((units + 1, width), np.inf)
        before = np.full((units + 1, len(self.sizes), width), np.inf)
        for number, size in enumerate(self.sizes):
            before[:, number, : width - size] = below[:, size:]
        lengths = self._lengths(cost)
        for first in reversed(range(units)):
            length = lengths[first]
            if not length:
                continue
            total = self._here(cost, first, length) + before[first + 1 : first + 1 + length]
            reached[first] = total.reshape(-1, width).min(0)
            if repeated:
                for number, size in enumerate(self.sizes):
                    mine = before[first, number, : width - size]
                    np.minimum(mine, reached[first, size:], out=mine)
        return reached, before

    def _lengths(self, cost: Array) -> list[int]:
        """Of the stages that begin with each unit, how many units the longest has that is possible at all."""
        possible, begin = np.isfinite(cost).any(0), self.triangle.begin
        last = np.maximum.accumulate(np.where(possible, np.arange(self.triangle.size), -1))
        return [max(0, int(last[end - 1]) + 1 - int(a)) for a, end in pairwise(begin)]

    def _here(self, cost: Array, first: int, length: int) -> Array:
        """The costs of the stages that begin with this unit and have at most so many, by last unit, size and device."""
        begin = self.triangle.begin[first]
        here = cost[:, begin : begin + length].T
        return here[:, self._first_rows, None] if self._alike else here[:, self._rows]

    def _chain(self, costs: Sequence[Array], layers: list[Array], befores: list[Array], layer: int) -> list[ChainStage]:
        """Walks the way that the least sum came."""
        units, deepest, found = self.triangle.units, len(layers) - 1, list[ChainStage]()
        first = offset = 0
        while first < units:
            here = self._here(costs[layer], first, units - first)
            total = here[:, :, 0 if self._alike else offset] + befores[layer][first + 1 :, :, offset]
            last, size = divmod(int(total.argmin()), len(self.sizes))
            last += first + 1
            found.append(ChainStage(first, last, offset, size, layer + 1))
            first, offset = last, offset + self.sizes[size]
            if layer < deepest or (deepest and layers[layer - 1][first, offset] < layers[layer][first, offset]):
                layer -= 1
        return found
