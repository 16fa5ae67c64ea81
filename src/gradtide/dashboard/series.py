"""Samples and losses over time, in a number of points that does not grow."""

import math
from typing import Any

__all__ = ["Series"]

_FIRST_S = 0.25
_MOST = 1024  # points; with more, two become one


class Series:
    """Equal slots of time; the loss of a slot is weighed by samples."""

    def __init__(self) -> None:
        self.slot_s = _FIRST_S
        self.unit = "samples/s"  # of the rate
        self._samples: list[float] = []
        self._losses: list[float] = []  # times samples
        self._weights: list[float] = []  # samples whose loss is known, and a number
        self._sent, self._sent_slot_s = 0, 0.0  # what the last delta told

    def add(self, at_s: float, samples: float, loss: float | None = None) -> None:
        while at_s / self.slot_s >= _MOST:
            self._samples, self._losses, self._weights = map(_halved, (self._samples, self._losses, self._weights))
            self.slot_s *= 2
        slot = max(0, int(at_s / self.slot_s))
        missing = slot + 1 - len(self._samples)
        self._samples += [0.0] * missing
        self._losses += [0.0] * missing
        self._weights += [0.0] * missing
        self._samples[slot] += samples
        if loss is not None and math.isfinite(loss):
            self._losses[slot] += loss * samples
            self._weights[slot] += samples
        self._sent = min(self._sent, slot)

    def whole(self) -> dict[str, Any]:
        return self._from(0)

    def delta(self) -> dict[str, Any] | None:
        """What has changed since the last one; all of it when slots have become longer."""
        first = self._sent if self.slot_s == self._sent_slot_s else 0
        if first >= len(self._samples):
            return None
        self._sent, self._sent_slot_s = len(self._samples), self.slot_s
        return self._from(first)

    def _from(self, first: int) -> dict[str, Any]:
        samples, known = self._samples[first:], zip(self._losses[first:], self._weights[first:], strict=True)
        return {
            "slot_s": self.slot_s,
            "unit": self.unit,
            "from": first,
            "rate": [round(n / self.slot_s, 2) for n in samples],
            "loss": [float(f"{loss / weight:.6g}") if weight else None for loss, weight in known],
        }


def _halved(values: list[float]) -> list[float]:
    return [sum(values[i : i + 2]) for i in range(0, len(values), 2)]
