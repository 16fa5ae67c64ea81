"""Where the time and the bytes of a run went, from its events."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from gradtide.events import (
    BatchDone,
    BatchStarted,
    EpochDone,
    Event,
    GradientsReady,
    GradientsSynchronised,
    ParametersUpdated,
    Waiting,
)

__all__ = ["PHASES", "Meter", "Span", "Timed", "Totals", "phase_between", "spans", "starts_phase"]

# What a worker does, in the order of a step; evaluating comes between epochs.
PHASES = ("compute", "push", "wait", "update", "data", "evaluate")

# From each event on it does this; other events change nothing.
_FROM: dict[type[Event], str] = {
    BatchStarted: "compute",
    GradientsReady: "push",
    Waiting: "wait",
    GradientsSynchronised: "update",
    ParametersUpdated: "update",  # until BatchDone: what is left of the step
    BatchDone: "data",
    EpochDone: "data",
}


class Timed(NamedTuple):
    """An event, and when it came."""

    at_s: float
    event: Event


class Span(NamedTuple):
    """A stretch of time that went into one thing."""

    phase: str
    start_s: float
    end_s: float


def spans(events: Iterable[Timed]) -> Iterator[Span]:
    """The events of one worker as what it did when, without gaps; neighbours that are alike are one."""
    open_: Span | None = None
    before: Timed | None = None
    for timed in events:
        if not starts_phase(timed.event):
            continue
        if before is not None:
            phase = phase_between(before.event, timed.event)
            if open_ is not None and open_.phase != phase:
                yield open_
                open_ = None
            open_ = Span(phase, before.at_s if open_ is None else open_.start_s, timed.at_s)
        before = timed
    if open_ is not None:
        yield open_


def starts_phase(event: Event) -> bool:
    """Whether a worker does something else from then on."""
    return type(event) in _FROM


def phase_between(before: Event, after: Event) -> str:
    """What it did between two such events. Between the last batch of an epoch and the epoch's end lies its evaluation.
    A loop of the user's own does not say that a batch is done: it fetches the next one after its step."""
    if isinstance(before, ParametersUpdated) and isinstance(after, BatchStarted):
        return "data"
    return "evaluate" if isinstance(after, EpochDone) else _FROM[type(before)]


@dataclass(slots=True)
class Totals:
    """Sums over a run. The five times add up to the time spent training; evaluating is not in it."""

    samples: int = 0
    steps: int = 0
    wire_bytes: int = 0
    compute_s: float = 0.0  # forward and backward
    push_s: float = 0.0  # handing gradients over, after backward; with the devices of one process: adding them up
    wait_s: float = 0.0  # for other workers
    update_s: float = 0.0
    data_s: float = 0.0  # waiting for the next batch
    evaluate_s: float = 0.0
    loss: float = float("nan")  # of the last batch
    test_accuracy: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # of the user's own, after the last epoch

    @property
    def sync_s(self) -> float:
        return self.push_s + self.wait_s

    @property
    def train_s(self) -> float:
        return self.compute_s + self.sync_s + self.update_s + self.data_s

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.train_s if self.train_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        more = {"sync_s": self.sync_s, "train_s": self.train_s, "samples_per_s": self.samples_per_s}
        return {**asdict(self), **more}


class Meter:
    """An observer: pass its `observe` as `emit`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.totals = Totals()
        self._clock = clock
        self._last: Timed | None = None  # starting up is not waiting for data: the first event starts the clock

    def observe(self, event: Event) -> None:
        self.note(Timed(self._clock(), event))

    def note(self, timed: Timed) -> None:
        """An event that came at a known time."""
        totals, event = self.totals, timed.event
        if not starts_phase(event):
            return
        if self._last is not None:
            name = f"{phase_between(self._last.event, event)}_s"
            setattr(totals, name, getattr(totals, name) + timed.at_s - self._last.at_s)
        self._last = timed
        match event:
            case GradientsSynchronised():
                totals.wire_bytes += event.wire_bytes
            case BatchDone():
                totals.samples += event.samples
                totals.steps += 1
                totals.loss = event.loss
            case EpochDone():
                totals.test_accuracy, totals.metrics = event.test_accuracy, event.metrics
