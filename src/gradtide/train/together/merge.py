"""The lines of all workers as the metrics of one run, in the form that record.py writes for one process."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gradtide.events import BatchDone, ClockAligned, CompressionDecided, EpochDone, Event, SharesChanged, SplitDecided
from gradtide.observe.clocks import aligned
from gradtide.observe.meter import Meter, Timed, Totals

__all__ = ["first_s", "merge", "totals_of"]


def first_s(logs: Iterable[Sequence[Timed]]) -> float:
    """When the first worker began."""
    began = (next((at_s for at_s, event in log if not isinstance(event, ClockAligned)), None) for log in logs)
    return min((at_s for at_s in began if at_s is not None), default=0.0)


def totals_of(log: Iterable[Timed]) -> Totals:
    meter = Meter()
    for timed in log:
        meter.note(timed)
    return meter.totals


def merge(run: str, logs: Mapping[int, Sequence[Timed]]) -> list[dict[str, Any]]:
    """A line a step, its loss weighed by the workers' samples, and a line an epoch; each when its last worker was. And
    a line for each change of shares."""
    logs = aligned(logs)
    began_s = first_s(logs.values())
    steps: dict[int, list[tuple[float, BatchDone]]] = defaultdict(list)
    epochs: dict[int, list[tuple[float, EpochDone]]] = defaultdict(list)
    for log in logs.values():
        own: dict[tuple[type[Event], int], tuple[float, BatchDone | EpochDone]] = {}
        for at_s, event in log:  # a run that was rewound does a step once more: the last time counts
            if isinstance(event, BatchDone | EpochDone):
                number = event.step if isinstance(event, BatchDone) else event.epoch
                own[type(event), number] = (at_s - began_s, event)
        for at_s, event in own.values():
            if isinstance(event, BatchDone):
                steps[event.step].append((at_s, event))
            else:
                epochs[event.epoch].append((at_s, event))
    lines = [_batch(steps[step]) for step in sorted(steps)] + [_epoch(epochs[epoch]) for epoch in sorted(epochs)]
    for rank, log in logs.items():
        lines += _shares(rank, log, began_s, first=rank == min(logs))
    for kind, decided in (("compression", CompressionDecided), ("split", SplitDecided)):
        told = [(at_s, event) for at_s, event in logs[min(logs)] if isinstance(event, decided)] if logs else []
        lines += [{"kind": kind, "seconds": round(at_s - began_s, 6), **asdict(event)} for at_s, event in told]
    return [{"run": run, **line} for line in sorted(lines, key=lambda line: line["seconds"])]


def _shares(rank: int, log: Sequence[Timed], began_s: float, *, first: bool) -> Iterator[dict[str, Any]]:
    """Those of workers are the same for all, and told once; those of a worker's devices are its own."""
    step = 0
    for at_s, event in log:
        if isinstance(event, BatchDone):
            step = event.step
        elif isinstance(event, SharesChanged) and (first or event.who == "device"):
            of = {"worker": rank} if event.who == "device" else {}
            yield {"kind": "shares", "seconds": round(at_s - began_s, 6), "step": step, **of, **asdict(event)}


def _batch(parts: Sequence[tuple[float, BatchDone]]) -> dict[str, Any]:
    seconds, events = max(at_s for at_s, _ in parts), [event for _, event in parts]
    samples = sum(event.samples for event in events)
    right = [event.correct for event in events if event.correct is not None]
    return {
        "kind": "batch",
        "seconds": round(seconds, 6),
        "epoch": events[0].epoch,
        "step": events[0].step,
        "loss": sum(event.loss * event.samples for event in events) / samples if samples else None,
        "accuracy": sum(right) / samples if samples and len(right) == len(events) else None,
        "lr": events[0].lr,
    }


def _epoch(parts: Sequence[tuple[float, EpochDone]]) -> dict[str, Any]:
    tested = [(at_s, event) for at_s, event in parts if event.test_loss is not None] or parts
    _, event = max(tested, key=lambda part: part[0])
    return {
        "kind": "epoch",
        "seconds": round(max(at_s for at_s, _ in parts), 6),  # after the last batch of all workers
        "epoch": event.epoch,
        "test_loss": event.test_loss,
        "test_accuracy": event.test_accuracy,
        **({"metrics": event.metrics} if event.metrics else {}),
    }
