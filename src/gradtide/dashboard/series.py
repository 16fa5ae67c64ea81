"""Samples and losses over time, in a number of points that does not grow."""

import math
from collections import deque
from statistics import median
from typing import Any

__all__ = ["Series"]

_FIRST_S = 0.25
_MOST = 1024  # slots; with more, two become one
_STEPS = 3  # that a bin is at least as long as: with fewer, a rate would jump with every step that is late
_KNOWN = 99  # steps by whose median a bin is made


class Series:
    """Equal slots of time, told as bins of one or more; the loss of a bin is weighed by samples."""

    def __init__(self) -> None:
        self.slot_s = _FIRST_S
        self.unit = "samples/s"  # of the rate
        self._samples: list[float] = []
        self._losses: list[float] = []  # times samples
        self._weights: list[float] = []  # samples whose loss is known, and a number
        self._steps_s: deque[float] = deque(maxlen=_KNOWN)
        self._end_s = 0.0
        self._sent, self._sent_as, self._untold = 0, (0.0, 0), False  # what the last delta told

    def add(
        self, at_s: float, samples: float, loss: float | None = None, *, took_s: float = 0, step_s: float = 0
    ) -> None:
        """Samples that took so long until then; `step_s`: from the end of the worker's step before to that of this."""
        while at_s / self.slot_s >= _MOST:
            self._samples, self._losses, self._weights = map(_halved, (self._samples, self._losses, self._weights))
            self.slot_s *= 2
        took_s = min(took_s, at_s)
        first, last = (max(0, int(second / self.slot_s)) for second in (at_s - took_s, at_s))
        missing = last + 1 - len(self._samples)
        self._samples += [0.0] * missing
        self._losses += [0.0] * missing
        self._weights += [0.0] * missing
        for slot in range(first, last + 1):
            begin_s, end_s = max(at_s - took_s, slot * self.slot_s), min(at_s, (slot + 1) * self.slot_s)
            self._samples[slot] += samples * ((end_s - begin_s) / took_s if first < last else 1.0)
        if loss is not None and math.isfinite(loss):
            self._losses[last] += loss * samples
            self._weights[last] += samples
        if step_s > 0:
            self._steps_s.append(step_s)
        self._sent, self._end_s, self._untold = min(self._sent, first), max(self._end_s, at_s), True

    def whole(self) -> dict[str, Any]:
        return self._from(0)

    def delta(self) -> dict[str, Any] | None:
        """What has changed since the last one; all of it when bins have another length. The last bin may still grow."""
        if not self._untold:
            return None
        told_as = self.slot_s, self._bin
        first = self._sent if told_as == self._sent_as else 0
        self._sent, self._sent_as, self._untold = len(self._samples) - 1, told_as, False
        return self._from(first)

    def _from(self, first: int) -> dict[str, Any]:
        bin_s = self._bin * self.slot_s
        first = first // self._bin * self._bin
        told = self._samples, self._losses, self._weights
        samples, losses, weights = (_binned(values[first:], self._bin) for values in told)
        rates: list[float | None] = [round(n / bin_s, 2) for n in samples]
        if samples:  # the last bin is not over
            rates[-1] = self._last_rate(samples[-1], bin_s, alone=len(samples) == 1 and not first)
        known = zip(losses, weights, strict=True)
        return {
            "slot_s": bin_s,
            "unit": self.unit,
            "from": first // self._bin,
            "rate": rates,
            "loss": [float(f"{loss / weight:.6g}") if weight else None for loss, weight in known],
        }

    def _last_rate(self, samples: float, bin_s: float, *, alone: bool) -> float | None:
        lasted_s = self._end_s % bin_s
        return round(samples / lasted_s, 2) if lasted_s >= bin_s / 2 or (alone and lasted_s) else None

    @property
    def _bin(self) -> int:
        """Slots of a bin: a power of two, so that it seldom changes."""
        least_s = _STEPS * median(self._steps_s) if self._steps_s else 0.0
        return 1 << max(0, math.ceil(math.log2(max(1.0, least_s / self.slot_s))))


def _halved(values: list[float]) -> list[float]:
    return _binned(values, 2)


def _binned(values: list[float], size: int) -> list[float]:
    return [sum(values[at : at + size]) for at in range(0, len(values), size)]
