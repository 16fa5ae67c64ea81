"""What parts of a batch cost, from measurements that are noisy: `fixed + sample * samples`, for one worker or device.

A few measurements of one size can't tell the fixed from the rest, so the fixed is taken for nought until parts of
different sizes say otherwise (a prior that a least-squares fit weighs against them). That is harmless: shares by such
costs are wrong by the fixed part's share of a part's time, the next ones by its square, and so on.

Measurements that are far off (a page fault, a checkpoint) count little or nothing. If the last few are all off to the
same side, the speed has changed, and those before them are forgotten.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from gradtide.fair_share import Cost

__all__ = ["CostMeter", "Estimate"]

_KEPT = 20  # measurements: a change too small to be noticed as one is forgotten after as many
_NOISE, _NOISE_COUNTS = 0.1, 6  # relative: what is expected before measurements tell, and as how many of them it counts
_LEAST_NOISE, _LEAST_FAR = 0.005, 0.03  # nothing is an outlier that is within a few per cent
_FIXED = 0.3  # of a part's time may well be fixed; what speaks for more has to be clear
_MOST_FIXED = 0.9
_FAR, _TOO_FAR = 2.0, 5.0  # in units of the noise: from here on a measurement counts less, and not at all
_ROUNDS = 3  # of weighing measurements by the fit, and fitting again
_CHANGES = ((3, 2.0), (6, 1.0), (10, 0.7))  # so many, nearly all of them so far off, in units of the noise
_LEAST_CHANGE = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of a cost."""

    cost: Cost
    doubt: float  # the relative standard error of a part's time
    measurements: int  # that it rests on


@dataclass(frozen=True, slots=True)
class _Fit:
    cost: Cost
    noise: float
    counts: float  # measurements, each by what it counts
    errors: tuple[float, ...]  # of each measurement, relative


class CostMeter:
    """Measurements of one worker or device, the newest."""

    def __init__(self) -> None:
        self._seen = deque[tuple[int, float]](maxlen=_KEPT)
        self._warm = False

    def add(self, samples: int, seconds: float) -> None:
        """A part of so many samples took so long. The first one is not kept: it warms up caches and allocators."""
        if self._warm and samples > 0 and seconds > 0:
            self._seen.append((samples, seconds))
        self._warm = True

    def estimate(self) -> Estimate | None:
        """What a part costs now; None before anything is measured."""
        if not self._seen:
            return None
        fit = _fit(self._seen)
        newest = _since_change(fit.errors)
        if newest < len(self._seen):
            for _ in range(len(self._seen) - newest):
                self._seen.popleft()
            fit = _fit(self._seen)
        return Estimate(fit.cost, fit.noise / sqrt(max(fit.counts, 1.0)), len(self._seen))


def _since_change(errors: Sequence[float]) -> int:
    """How many of the newest measurements are of the speed that it has now."""
    for newest, far in _CHANGES:
        before, after = errors[:-newest], errors[-newest:]
        if len(before) < newest:
            break
        middle, limit = _median(before), max(_LEAST_CHANGE, far * _spread([*_around(before), *_around(after)]))
        off = sorted(error - middle for error in after)
        if off[newest // 4] > limit or off[-1 - newest // 4] < -limit:  # most of them, so two outliers are no change
            return newest
    return len(errors)


def _median(values: Sequence[float]) -> float:
    """The lower one of two: a measurement errs to the long side."""
    return sorted(values)[(len(values) - 1) // 2]


def _around(errors: Sequence[float]) -> list[float]:
    middle = _median(errors)
    return [error - middle for error in errors]


def _spread(errors: Sequence[float]) -> float:
    """A standard deviation that outliers don't move; what is expected beforehand counts ever less."""
    rough = _blend(1.4826 * _median([abs(error) for error in errors]), len(errors))
    near = [error for error in errors if abs(error) <= 3 * rough]
    return _blend(sqrt(sum(error * error for error in near) / max(1, len(near))), len(near))


def _blend(noise: float, measurements: int) -> float:
    expected = max(0.0, _NOISE_COUNTS * (1 - measurements / _KEPT))
    square = (expected * _NOISE**2 + measurements * noise**2) / (expected + measurements)
    return max(_LEAST_NOISE, sqrt(square))


def _fit(seen: Sequence[tuple[int, float]]) -> _Fit:
    cost = _first_guess(seen)
    for _ in range(_ROUNDS):
        errors = _errors(cost, seen)
        noise = _spread(_around(errors))
        cost = _least_squares(seen, [_counts(error, noise) for error in errors], cost, noise)
    errors = _errors(cost, seen)
    noise = _spread(errors)
    return _Fit(cost, noise, sum(_counts(error, noise) for error in errors), errors)


def _first_guess(seen: Sequence[tuple[int, float]]) -> Cost:
    """By the median of each size: outliers don't move it, and sizes stay apart."""
    by_size: dict[int, list[float]] = {}
    for samples, seconds in seen:
        by_size.setdefault(samples, []).append(seconds)
    near = Cost(0.0, _median([seconds / samples for samples, seconds in seen]))
    if len(by_size) == 1:
        return near
    medians = [(samples, _median(times)) for samples, times in by_size.items()]
    return _least_squares(medians, [len(times) for times in by_size.values()], near, _NOISE)


def _errors(cost: Cost, seen: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    return tuple(seconds / cost.of(samples) - 1.0 for samples, seconds in seen)


def _counts(error: float, noise: float) -> float:
    far = abs(error) / max(noise, _LEAST_FAR)
    return 1.0 if far <= _FAR else (0.0 if far > _TOO_FAR else _FAR / far)


def _least_squares(seen: Sequence[tuple[int, float]], counts: Sequence[float], near: Cost, noise: float) -> Cost:
    """Of relative errors, with the prior on what is fixed."""
    ones = n = nn = t = nt = 0.0
    for (samples, seconds), count in zip(seen, counts, strict=True):
        weight = count / near.of(samples) ** 2
        ones, n, nn = ones + weight, n + weight * samples, nn + weight * samples**2
        t, nt = t + weight * seconds, nt + weight * samples * seconds
    if not ones:
        return near
    usual_s, least = t / ones, min(samples for samples, _ in seen)
    if least == max(samples for samples, _ in seen):
        return Cost(0.0, t / n)
    ones += (noise / (_FIXED * usual_s)) ** 2
    fixed_s = (t * nn - n * nt) / (ones * nn - n * n)
    fixed_s = min(max(fixed_s, 0.0), _MOST_FIXED * usual_s)
    return Cost(fixed_s, max((nt - fixed_s * n) / nn, 1e-12))
