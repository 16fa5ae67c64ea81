"""One worker, from its events: where its time goes, what it sends to whom, how stale the values are that it pulls."""

import math
from collections import Counter, deque
from typing import Any

from gradtide.events import (
    BatchDone,
    BatchStarted,
    Event,
    GradientsSynchronised,
    LinksPlanned,
    LocalWindow,
    ParametersUpdated,
    ValuesPulled,
)
from gradtide.observe.meter import PHASES, Meter, Timed, phase_between, starts_phase

__all__ = ["WorkerView"]

_KEPT = 240  # spans: the last steps


class WorkerView:
    """Totals, and the last spans."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.link_bytes: Counter[tuple[str, str]] = Counter()
        self.staleness: Counter[int] = Counter()
        self.planned: LinksPlanned | None = None
        self.last: BatchDone | None = None
        self.stepped_s: float | None = None  # its last step, if it does not say that a batch is done
        self.started_s: float | None = None  # the step that it is in
        self.done_s: float | None = None  # the last step that counts
        self._own_steps = 0
        self._meter = Meter()
        self._spans: deque[list[float]] = deque(maxlen=_KEPT)
        self._new: list[list[float]] = []
        self._before: Timed | None = None

    @property
    def totals(self) -> Any:
        return self._meter.totals

    @property
    def steps(self) -> int:
        """As it counts them, or, in a loop of the user's own, how often it has updated its parameters."""
        return self._own_steps if self.last is None else int(self._meter.totals.steps)

    def note(self, timed: Timed) -> None:
        self._meter.note(timed)
        if starts_phase(timed.event):
            if self._before is not None:
                self._note_span(self._before, timed)
            self._before = timed
        self._note_event(timed.event)
        if isinstance(timed.event, ParametersUpdated):
            self._own_steps += 1
            self.stepped_s = timed.at_s if self.last is None else None
        elif isinstance(timed.event, BatchDone | BatchStarted):
            self.stepped_s = None
        if isinstance(timed.event, BatchStarted):
            self.started_s = timed.at_s

    def _note_event(self, event: Event) -> None:
        match event:
            case LinksPlanned():
                self.planned = event
            case GradientsSynchronised() if event.wire_bytes and self.planned is not None:
                for source, target, size in self.planned.loads:
                    self.link_bytes[str(source), str(target)] += int(size)
            case ValuesPulled():
                self.staleness[event.staleness] += 1
            case LocalWindow():
                self.staleness[_behind(event)] += 1
            case BatchDone():
                self.last = event

    def _note_span(self, before: Timed, timed: Timed) -> None:
        kind = PHASES.index(phase_between(before.event, timed.event))
        if self._new and self._new[-1][0] == kind:
            self._new[-1][2] = timed.at_s
        else:
            self._new.append([kind, before.at_s, timed.at_s])

    def take_spans(self) -> list[list[float]]:
        """Those since the last time: the last of them, if there are many."""
        found, self._new = self._new[-_KEPT:], []
        self._spans.extend(found)
        return found

    @property
    def kept_spans(self) -> list[list[float]]:
        return list(self._spans)

    def row(self) -> dict[str, Any]:
        """Its totals, as the page shows them."""
        totals = self._meter.totals
        seconds = {phase: round(getattr(totals, f"{phase}_s"), 4) for phase in PHASES}
        last = self.last
        return {
            "rank": self.rank,
            "seconds": seconds,
            "samples": totals.samples if last else None,
            "steps": self.steps,
            "rate": round(totals.samples_per_s, 1) if last else None,
            "epoch": last.epoch if last else None,
            "step": last.step if last else None,
            "loss": last.loss if last and math.isfinite(last.loss) else None,
            "wire_bytes": totals.wire_bytes,
        }


def _behind(window: LocalWindow) -> int:
    """How many updates of others came between what this worker began with and its own, where most did."""
    began = {shard: (epoch, sequence) for shard, epoch, sequence in window.began}
    missed = [
        sequence - began[shard][1] - 1
        for shard, epoch, sequence in window.applied
        if shard in began and began[shard][0] == epoch
    ]
    return max([0, *missed])
