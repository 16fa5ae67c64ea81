"""A whole run: all workers, predicted beside measured, what has happened."""

import math
from collections import Counter, deque
from typing import Any, NamedTuple

from gradtide.dashboard.series import Series
from gradtide.dashboard.worker_view import WorkerView
from gradtide.events import BatchDone, BatchStarted, EpochDone, LinksPlanned
from gradtide.observe.describe import describe
from gradtide.observe.figures import MetricFigures
from gradtide.observe.meter import PHASES, Timed

__all__ = ["RunEnd", "RunView"]

_KEPT = 200  # happenings


class RunEnd(NamedTuple):
    """That a run is over."""

    unix_s: float | None  # None: nobody has said when
    code: int


class RunView:
    """Fed with events; gives plain data. Times in it are seconds since the first event."""

    def __init__(self, title: str = "") -> None:
        self.title = title
        self.workers: dict[int, WorkerView] = {}
        self.series = Series()
        self.began_s: float | None = None
        self.began_unix_s: float | None = None
        self.ended: RunEnd | None = None
        self._line_s = 0.0
        self._happened: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._new: list[dict[str, Any]] = []
        self._told_ended: RunEnd | None = None

    def note(self, rank: int, events: list[Timed], unix_offset_s: float) -> None:
        """Events of a worker; `unix_offset_s` brings its clock to that of the wall."""
        if not events:
            return
        if self.began_s is None:
            self.began_s, self.began_unix_s = events[0].at_s, events[0].at_s + unix_offset_s
        worker = self.workers.setdefault(rank, WorkerView(rank))
        for timed in events:
            if isinstance(timed.event, BatchDone):
                self.series.unit = "samples/s"
                self._note_step(worker, timed.at_s, timed.event.samples, timed.event.loss)
            elif isinstance(timed.event, BatchStarted) and worker.stepped_s is not None:  # a loop of the user's own
                self.series.unit = "steps/s"
                self._note_step(worker, worker.stepped_s, 1)
            worker.note(timed)
            told = describe(timed.event)
            if told is not None and (rank == 0 or not isinstance(timed.event, EpochDone | LinksPlanned)):
                self._note(timed.at_s + unix_offset_s, f"worker {rank}", *told)

    def _note_step(self, worker: WorkerView, at_s: float, samples: int, loss: float | None = None) -> None:
        assert self.began_s is not None
        started_s = at_s if worker.started_s is None else worker.started_s
        before_s, worker.done_s = worker.done_s, at_s
        step_s = at_s - (started_s if before_s is None else before_s)
        self.series.add(at_s - self.began_s, samples, loss, took_s=at_s - started_s, step_s=step_s)

    def note_line(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl: of a run of one process, whose events nobody has written down."""
        if line.get("kind") == "batch" and line.get("loss") is not None:
            self.ended = None  # that was the run before
            self.series.unit = "steps/s"
            took_s = max(0.0, line["seconds"] - self._line_s)  # of the next run in that file it begins anew
            self.series.add(line["seconds"], 1, line["loss"], took_s=took_s, step_s=took_s)
            self._line_s = line["seconds"]
        elif line.get("kind") == "summary":
            self.ended = RunEnd(None, 0)

    def _note(self, unix_s: float, who: str, kind: str, text: str) -> None:
        entry = {"unix_s": round(unix_s, 3), "who": who, "kind": kind, "text": text}
        self._happened.append(entry)
        self._new.append(entry)

    def link_bytes(self) -> dict[tuple[str, str], float]:
        found: Counter[tuple[str, str]] = Counter()
        for worker in self.workers.values():
            found.update(worker.link_bytes)
        return dict(found)

    def staleness(self) -> dict[int, int]:
        found: Counter[int] = Counter()
        for worker in self.workers.values():
            found.update(worker.staleness)
        return dict(found)

    def comparison(self) -> list[dict[str, Any]]:
        """What synchronising was predicted to take, beside what it took: the mean of all workers' steps, after
        backward, waiting for others included."""
        planned = next((worker.planned for worker in self.workers.values() if worker.planned is not None), None)
        steps = sum(worker.steps for worker in self.workers.values())
        if planned is None or not steps:
            return []
        measured_s = sum(worker.totals.sync_s for worker in self.workers.values()) / steps
        row = {"what": "synchronise", "way": planned.way, "links": planned.links, "measured_s": measured_s}
        return [row | {"predicted_s": planned.predicted_s}]

    def add_figures(self, figures: MetricFigures) -> None:
        for rank, worker in self.workers.items():
            totals = worker.totals
            figures.phase_s |= {(rank, phase): getattr(totals, f"{phase}_s") for phase in PHASES}
            figures.steps[rank] = worker.steps
            if worker.last is not None:  # else nobody has said how many there were
                figures.samples[rank] = totals.samples
        figures.link_bytes, figures.staleness = self.link_bytes(), self.staleness()
        for row in self.comparison():
            figures.measured_s[row["what"]] = row["measured_s"]
            if row["predicted_s"] is not None:
                figures.predicted_s[row["what"]] = row["predicted_s"]
        losses = [worker.totals.loss for worker in self.workers.values() if math.isfinite(worker.totals.loss)]
        figures.loss = sum(losses) / len(losses) if losses else None

    def snapshot(self) -> dict[str, Any]:
        """All there is, for a reader that has just come."""
        return self._totals() | {
            "phases": list(PHASES),
            "series": self.series.whole(),
            "spans": {rank: self._shifted(worker.kept_spans) for rank, worker in self.workers.items()},
            "happened": list(self._happened),
        }

    def delta(self) -> dict[str, Any]:
        """What is new since the last one."""
        spans = {rank: self._shifted(worker.take_spans()) for rank, worker in self.workers.items()}
        happened, self._new = self._new, []
        found: dict[str, Any] = {"spans": {rank: new for rank, new in spans.items() if new}, "happened": happened}
        series = self.series.delta()
        told, self._told_ended = self._told_ended, self.ended
        if series is None and not found["spans"] and not happened and told == self.ended:
            return {}
        return self._totals() | {name: value for name, value in (found | {"series": series}).items() if value}

    def _totals(self) -> dict[str, Any]:
        return {
            "title": self.title,  # which is not known before the run says it
            "began_unix_s": self.began_unix_s,
            "ended": self.ended,
            "workers": [worker.row() for _, worker in sorted(self.workers.items())],
            "links": [[*pair, size] for pair, size in sorted(self.link_bytes().items())],
            "staleness": sorted(self.staleness().items()),
            "comparison": self.comparison(),
        }

    def _shifted(self, spans: list[list[float]]) -> list[list[float]]:
        began_s = self.began_s or 0.0
        return [[kind, round(start - began_s, 4), round(end - began_s, 4)] for kind, start, end in spans]
