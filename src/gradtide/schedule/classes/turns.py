"""Turns: ranks on a grid whose edges meet, and what it means to turn the grid by a rank.

A cluster of machines that are alike looks the same from each of its ranks. Ranks are places of a grid: (machine, GPU),
or (rack, machine, GPU), or a torus' own axes. To turn the grid by a rank is to add its coordinates to all others', axis
by axis, round the edge. What one rank does, another does turned.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["Turns"]

Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Turns:
    """Places 0, 1, … of a grid, the last axis running fastest."""

    sides: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.sides)

    def coordinates(self, places: Ints) -> tuple[Ints, ...]:
        return tuple(np.unravel_index(places, self.sides))

    def places(self, coordinates: tuple[Ints, ...]) -> Ints:
        found: Ints = np.ravel_multi_index(coordinates, self.sides)
        return found

    def add(self, a: Ints | int, b: Ints | int) -> Ints:
        """The place that `a` comes to when the grid is turned by `b`."""
        return self._each(np.asarray(a), np.asarray(b), 1)

    def subtract(self, a: Ints | int, b: Ints | int) -> Ints:
        """By how much the grid must be turned for `b` to come to `a`."""
        return self._each(np.asarray(a), np.asarray(b), -1)

    def _each(self, a: Ints, b: Ints, sign: int) -> Ints:
        total, stride = np.zeros(np.broadcast(a, b).shape, dtype=np.intp), 1
        for side in reversed(self.sides):
            total += (a // stride % side + sign * (b // stride % side)) % side * stride
            stride *= side
        return total
