"""Medians, ratios and a JSON file."""

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gradtide.bench.machine import describe_machine
from gradtide.errors import OutputError

__all__ = ["Row", "check_output", "content", "rows", "write"]


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's figures over all rounds."""

    name: str
    per_s: float  # median
    per_s_min: float
    per_s_max: float
    ratio: float  # of the median to the first contender's


def rows(seconds: dict[str, list[float]], work: float) -> list[Row]:
    """From seconds per repetition to work per second; the first contender is the measure."""
    rates = {name: [work / s for s in of_peer] for name, of_peer in seconds.items()}
    first = median(next(iter(rates.values())))
    return [Row(name, median(r), min(r), max(r), median(r) / first) for name, r in rates.items()]


def check_output(path: Path) -> None:
    """Found out before the benchmark runs, not after."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if path.stat().st_size == 0:
            path.unlink()
    except OSError as error:
        raise OutputError(f"can't write {path} ({error.strerror}); choose another --output") from error


def content(
    results: Sequence[Any], before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a result file holds: by which command, when and on which machine, the results (of any dataclass), and what
    else belongs to them."""
    told = {"command": _command(sys.argv[1:]), "measured": time.strftime("%Y-%m-%d"), **(before or {})}
    told["machine"] = describe_machine().as_dict()
    return {**told, "results": [_said(row) for row in results], **(after or {})}


def _said(row: Any) -> dict[str, Any]:
    """Its fields, and what its properties make of them."""
    derived = [name for name, value in vars(type(row)).items() if isinstance(value, property)]
    return asdict(row) | {name: getattr(row, name) for name in derived}


def _command(arguments: Sequence[str]) -> str:
    """Without --output: where the file is now it says itself."""
    kept = [
        word
        for before, word in zip(["", *arguments], arguments, strict=False)
        if "--output" not in (before, word.partition("=")[0])
    ]
    return shlex.join(["gradtide", *kept])


def write(
    path: Path, results: Sequence[Any], before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None
) -> None:
    """Writes the content at once: what was there before stays until all of it is there."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content(results, before, after), indent=2) + "\n")
    partial.replace(path)
