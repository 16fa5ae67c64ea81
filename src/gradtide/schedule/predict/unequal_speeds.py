"""What a step takes on workers that are not equally fast: with equal parts of a batch, and with parts by speed.

With equal parts all wait for the slowest. With parts by speed all are done together, after 1 / (sum of the speeds) of
what a worker of speed 1 takes for the whole batch; or nearly so, since samples are whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.errors import ConfigError
from gradtide.fair_share import predict_balance

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
    found = predict_balance(speeds, batch, workers / batch)
    return SpeedForecast(tuple(speeds), found.even_s, found.fair_s, found.fair)
