"""What every worker did when, as a Chrome trace: one row a worker, to be opened in Perfetto or chrome://tracing."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide.errors import OutputError
from gradtide.events import BatchDone, SharesChanged
from gradtide.observe.meter import Timed, spans
from gradtide.train.together.merge import first_s

__all__ = ["trace", "write_trace"]


def write_trace(path: Path, logs: Mapping[int, Sequence[Timed]], name: str) -> None:
    try:
        path.write_text(json.dumps(trace(logs, name), separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write the trace to {path}: {error.strerror}; choose another --output") from None


def trace(logs: Mapping[int, Sequence[Timed]], name: str) -> dict[str, Any]:
    """The trace as plain data; each step's end is marked on its worker's row with what it saw, and so are changes of
    who takes how much of a batch."""
    began_s = first_s(logs.values())
    found = [_metadata("process_name", 0, {"name": name})]
    for rank, log in sorted(logs.items()):
        row = rank + 1
        found += [_metadata("thread_name", row, {"name": f"worker {rank}"})]
        found += [_metadata("thread_sort_index", row, {"sort_index": row})]
        found += [
            {"name": phase, "cat": "phase", "ph": "X", "ts": _us(start_s - began_s), "dur": _us(end_s - start_s)}
            | {"pid": 1, "tid": row}
            for phase, start_s, end_s in spans(log)
        ]
        found += [_step(event, at_s - began_s, row) for at_s, event in log if isinstance(event, BatchDone)]
        found += [_shares(event, at_s - began_s, row) for at_s, event in log if isinstance(event, SharesChanged)]
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _step(event: BatchDone, at_s: float, row: int) -> dict[str, Any]:
    seen = {"epoch": event.epoch, "loss": event.loss, "samples": event.samples}
    named = {"name": f"step {event.step}", "cat": "step", "ph": "i", "s": "t"}
    return named | {"ts": _us(at_s), "pid": 1, "tid": row, "args": seen}


def _shares(event: SharesChanged, at_s: float, row: int) -> dict[str, Any]:
    named = {"name": f"shares of {event.who}s: {', '.join(map(str, event.samples))}", "cat": "shares", "ph": "i"}
    return named | {"s": "t", "ts": _us(at_s), "pid": 1, "tid": row, "args": {"why": event.text}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _metadata(what: str, row: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": row, "args": args}
