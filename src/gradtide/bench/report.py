"""Medians, ratios, a table and a JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gradtide.bench.machine import describe_machine
from gradtide.errors import OutputError

__all__ = ["Row", "check_output", "rows", "show", "write"]


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


def show(title: str, unit: str, found: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("")
    for heading in (unit, "min", "max", f"x {found[0].name}"):
        table.add_column(heading, justify="right")
    for row in found:
        table.add_row(
            row.name, f"{row.per_s:,.0f}", f"{row.per_s_min:,.0f}", f"{row.per_s_max:,.0f}", f"{row.ratio:.2f}"
        )
    Console().print(table)


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


def write(
    path: Path, settings: dict[str, Any], unit: str, found: Sequence[Row], seconds: dict[str, list[float]]
) -> None:
    content = {
        "settings": settings,
        "unit": unit,
        "machine": describe_machine().as_dict(),
        "results": [asdict(row) for row in found],
        "seconds": seconds,
    }
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
