"""What a step takes on workers that are not equally fast: with equal parts of a batch, and with parts by speed.

With equal parts all wait for the slowest. With parts by speed all are done together, after 1 / (sum of the speeds) of
what a worker of speed 1 takes for the whole batch; or nearly so, since samples are whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from gradtide.errors import ConfigError
from gradtide.even_share import even_share

__all__ = ["SpeedForecast", "forecast_speeds"]


@dataclass(frozen=True, slots=True)
class SpeedForecast:
    """Times are in what an equal part takes a worker of speed 1."""

    speeds: tuple[float, ...]
    even: float
    balanced: float
    shares: tuple[float, ...]  # of the batch; samples, where a batch was given

    @property
    def gain(self) -> float:
        """How many times as fast balancing is."""
        return self.even / self.balanced


def forecast_speeds(speeds: Sequence[float], batch: int | None = None) -> SpeedForecast:
    """`batch`: the samples of all workers' batch; without it, parts are fractions."""
    if len(speeds) < 2 or not all(0 < speed < math.inf for speed in speeds):
        raise ConfigError("speeds are two numbers or more, all above 0, as 1,1,0.3")
    workers, total = len(speeds), sum(speeds)
    if batch is None:
        shares = tuple(speed / total for speed in speeds)
        return SpeedForecast(tuple(speeds), 1 / min(speeds), workers / total, shares)
    if batch < workers:
        raise ConfigError(f"{workers} workers but only {batch} samples in a batch; each needs one")
    parts = [end - begin for begin, end in (even_share(batch, worker, workers) for worker in range(workers))]
    counts = _by_speed(speeds, batch)
    equal = batch / workers
    even = max(part / speed for part, speed in zip(parts, speeds, strict=True)) / equal
    balanced = max(count / speed for count, speed in zip(counts, speeds, strict=True)) / equal
    return SpeedForecast(tuple(speeds), even, balanced, tuple(counts))


def _by_speed(speeds: Sequence[float], batch: int) -> list[int]:
    """The integer optimum, with a sample for each at least: what is sure to be done by then is dealt at once, each
    sample that is left goes to who would have it done first."""
    total = sum(speeds)
    counts = [max(1, math.floor(batch * speed / total * (1 - 1e-12))) for speed in speeds]
    while sum(counts) > batch:  # so slow that not even one sample was due to them
        last = max(range(len(counts)), key=lambda worker: (counts[worker] > 1, counts[worker] / speeds[worker]))
        counts[last] -= 1
    waiting = [((count + 1) / speed, worker) for worker, (count, speed) in enumerate(zip(counts, speeds, strict=True))]
    heapify(waiting)
    for _ in range(batch - sum(counts)):
        worker = waiting[0][1]
        counts[worker] += 1
        heapreplace(waiting, ((counts[worker] + 1) / speeds[worker], worker))
    return counts
