"""A schedule's run as a Chrome trace: one row a link, to be opened in Perfetto or chrome://tracing."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradtide.errors import OutputError

__all__ = ["Transfer", "chrome_trace", "write_timeline"]


class Transfer(NamedTuple):
    """One op on the wires: from when to when, over which links. A plain tuple of these four will do as well."""

    label: str
    links: Sequence[tuple[str, str]]  # (source, target) of each link on its route
    start_s: float
    end_s: float


def write_timeline(path: Path, spans: Iterable[tuple[str, Sequence[tuple[str, str]], float, float]], name: str) -> None:
    """Writes the trace to a file; `name` is what the viewer calls the whole."""
    try:
        path.write_text(json.dumps(chrome_trace(spans, name), separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write the timeline to {path}: {error.strerror}; name another file") from None


def chrome_trace(spans: Iterable[tuple[str, Sequence[tuple[str, str]], float, float]], name: str) -> dict[str, Any]:
    """The trace as plain data. Each link that is used has a row, in the order of first use.

    Spans of one row must nest for a viewer to stack them; where two only partly overlap, the link gets a second row.
    """
    by_link: dict[tuple[str, str], list[_Slice]] = defaultdict(list)
    for label, links, start_s, end_s in spans:
        for link in links:
            by_link[link].append(_Slice(round(start_s * 1e9), round(end_s * 1e9), label))
    events = [_metadata("process_name", 0, {"name": name})]
    row = 0
    for (source, target), slices in by_link.items():
        for lane, content in enumerate(_lanes(slices), start=1):
            row += 1
            title = f"{source} → {target}" + (f" ({lane})" if lane > 1 else "")
            events += [_metadata("thread_name", row, {"name": title})]
            events += [_metadata("thread_sort_index", row, {"sort_index": row})]
            events += [_complete(item, row) for item in content]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class _Slice(NamedTuple):
    start_ns: int
    end_ns: int
    label: str


def _lanes(slices: list[_Slice]) -> list[list[_Slice]]:
    """Deals slices to as few rows as a first fit needs for them to nest in each."""
    lanes: list[list[_Slice]] = []
    open_: list[list[int]] = []  # the ends of the slices around the current time, outermost first
    for item in sorted(slices, key=lambda s: (s.start_ns, -s.end_ns)):
        for ends in open_:
            while ends and ends[-1] <= item.start_ns:
                ends.pop()
        home = next((i for i, ends in enumerate(open_) if not ends or item.end_ns <= ends[-1]), len(lanes))
        if home == len(lanes):
            lanes.append([])
            open_.append([])
        lanes[home].append(item)
        open_[home].append(item.end_ns)
    return lanes


def _complete(item: _Slice, row: int) -> dict[str, Any]:
    start_us, length_us = item.start_ns / 1e3, (item.end_ns - item.start_ns) / 1e3
    return {"name": item.label, "cat": "op", "ph": "X", "ts": start_us, "dur": length_us, "pid": 1, "tid": row}


def _metadata(what: str, row: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": row, "args": args}
