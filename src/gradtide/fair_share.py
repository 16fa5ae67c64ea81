"""The fair share: parts of a batch that all who work on it finish together, by what a part costs each of them.

A part of n samples costs `fixed_s + sample_s * n`. The shares are the integer optimum: no other cut of the batch has a
shorter longest part. No torch in here: the planner predicts with it, and workers cut their batches with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from gradtide.even_share import even_share

__all__ = ["Cost", "Prediction", "even_shares", "fair_shares", "longest_s", "predict_balance"]

_BELOW = 1.0 - 1e-9  # the continuous optimum, less what floats may have added to it
_HALVINGS = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """What a part of a batch costs one worker or device."""

    fixed_s: float  # whatever the part is
    sample_s: float

    def of(self, samples: int) -> float:
        return self.fixed_s + self.sample_s * samples


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step takes with equal parts and with fair ones."""

    even: tuple[int, ...]
    fair: tuple[int, ...]
    even_s: float
    fair_s: float

    @property
    def gain(self) -> float:
        """How many times as fast it is."""
        return self.even_s / self.fair_s if self.fair_s else 1.0


def even_shares(samples: int, owners: int) -> tuple[int, ...]:
    """The parts of `even_share`, as sizes."""
    return tuple(end - begin for begin, end in (even_share(samples, owner, owners) for owner in range(owners)))


def longest_s(costs: Sequence[Cost], shares: Sequence[int]) -> float:
    """When the last of them is done."""
    return max(cost.of(share) for cost, share in zip(costs, shares, strict=True))


def fair_shares(costs: Sequence[Cost], samples: int, least: int = 1) -> tuple[int, ...]:
    """The sizes of parts, `least` or larger, whose longest takes the shortest time; even ones if there are too few.

    One sample after the other goes to who would have it done first: that is the optimum, since a part's time only
    grows with it. All that would be done by the continuous optimum's time are dealt at once.
    """
    if samples < least * len(costs):
        return even_shares(samples, len(costs))
    done_s = _continuous(costs, samples, least) * _BELOW
    shares = [max(least, _within(cost, done_s, samples)) for cost in costs]
    if sum(shares) > samples:  # where samples cost nothing
        shares = [least] * len(costs)
    waiting = [
        (cost.of(share + 1), share, index) for index, (cost, share) in enumerate(zip(costs, shares, strict=True))
    ]
    heapify(waiting)
    for _ in range(samples - sum(shares)):
        index = waiting[0][2]
        shares[index] += 1
        heapreplace(waiting, (costs[index].of(shares[index] + 1), shares[index], index))
    return tuple(shares)


def _within(cost: Cost, done_s: float, most: int) -> int:
    """How many samples it has done by then."""
    left_s = done_s - cost.fixed_s
    if cost.sample_s * most <= left_s:
        return most
    return math.floor(left_s / cost.sample_s) if left_s > 0.0 else 0


def _continuous(costs: Sequence[Cost], samples: int, least: int) -> float:
    """The time by which parts that need not be whole samples are just the batch, or a little less."""
    low, high = 0.0, longest_s(costs, [samples] * len(costs))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if sum(max(least, _within(cost, middle, samples)) for cost in costs) <= samples:
            low = middle
        else:
            high = middle
    return low


def predict_balance(
    speeds: Sequence[float], samples: int, sample_s: float = 1.0, *, fixed_s: float = 0.0, least: int = 1
) -> Prediction:
    """A step's compute time with and without balance, for workers of these speeds: (1, 1, 0.3) is two alike, and one
    that is 0.3 times as fast. `sample_s` and `fixed_s` are what a worker of speed 1 takes."""
    costs = [Cost(fixed_s / speed, sample_s / speed) for speed in speeds]
    even, fair = even_shares(samples, len(costs)), fair_shares(costs, samples, least)
    return Prediction(even, fair, longest_s(costs, even), longest_s(costs, fair))
