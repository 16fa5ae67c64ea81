"""Where the time and the bytes of a run went, from its events."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gradtide.events import (
    BatchDone,
    BatchStarted,
    EpochDone,
    Event,
    GradientsReady,
    GradientsSynchronised,
    ParametersUpdated,
)

__all__ = ["Meter", "Totals"]


@dataclass(slots=True)
class Totals:
    """Sums over a run. The four times add up to the time spent training; evaluating is not in it."""

    samples: int = 0
    steps: int = 0
    wire_bytes: int = 0
    compute_s: float = 0.0  # forward and backward
    sync_s: float = 0.0
    update_s: float = 0.0
    data_s: float = 0.0  # waiting for the next batch
    loss: float = float("nan")  # of the last batch
    test_accuracy: float | None = None

    @property
    def train_s(self) -> float:
        return self.compute_s + self.sync_s + self.update_s + self.data_s

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.train_s if self.train_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "train_s": self.train_s, "samples_per_s": self.samples_per_s}


class Meter:
    """An observer: pass its `observe` as `emit`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.totals = Totals()
        self._clock = clock
        self._last: float | None = None  # starting up is not waiting for data: the first event starts the clock

    def observe(self, event: Event) -> None:
        totals, passed = self.totals, self._lap()
        match event:
            case BatchStarted():
                totals.data_s += passed
            case GradientsReady():
                totals.compute_s += passed
            case GradientsSynchronised():
                totals.sync_s += passed
                totals.wire_bytes += event.wire_bytes
            case ParametersUpdated():
                totals.update_s += passed
            case BatchDone():
                totals.update_s += passed
                totals.samples += event.samples
                totals.steps += 1
                totals.loss = event.loss
            case EpochDone():  # the time since the last batch went into evaluating
                totals.test_accuracy = event.test_accuracy

    def _lap(self) -> float:
        now = self._clock()
        before, self._last = self._last, now
        return 0.0 if before is None else now - before
