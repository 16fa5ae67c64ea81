"""The mean of paired differences, and the interval that holds the true one in 95 of 100 cases (Student's t)."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from gradtide.errors import ConfigError

__all__ = ["paired_difference"]

# The 97.5 % quantile of t with 1 to 30 degrees of freedom.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def paired_difference(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The mean of one minus other, and half of the interval's width.

    >>> [round(number, 3) for number in paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])]
    [2.0, 2.484]
    """
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    count = len(differences)
    if not 2 <= count <= len(_QUANTILES) + 1:
        raise ConfigError(f"an interval needs 2 to {len(_QUANTILES) + 1} pairs, not {count}")
    return mean(differences), _QUANTILES[count - 2] * stdev(differences) / math.sqrt(count)
