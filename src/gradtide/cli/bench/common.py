"""What every benchmark's command does: where its figures go, what is said meanwhile and in the end."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.bench.report import Row
    from gradtide.bench.training.turns import Comparison

__all__ = ["print_rates", "print_results", "results_path", "say_compared", "say_written", "telling"]


def results_path(benchmark: str, output: Path | None) -> Path:
    """Where the figures go. That they can be written there is found out now, not when the benchmark has run."""
    from gradtide.bench.report import check_output

    path = output or Path("runs") / f"bench-{benchmark}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    check_output(path)
    return path


@contextmanager
def telling(first: str) -> Iterator[Callable[[str], None]]:
    """Shows what is being done, one line that changes; what it yields changes it."""
    from rich.console import Console

    with Console(stderr=True).status(first) as status:
        yield status.update


def print_results(results: Sequence[Any]) -> None:
    """What --json prints instead of a table."""
    print(json.dumps([asdict(row) for row in results]))


def print_rates(title: str, unit: str, found: "Sequence[Row]") -> None:
    """Work per second of each contender; the first is the measure."""
    rows = []
    for row in found:
        rates = (f"{rate:,.0f}" for rate in (row.per_s, row.per_s_min, row.per_s_max))
        rows.append((row.name, *rates, f"{row.ratio:.2f}"))
    print_table(("", unit, "min", "max", f"x {found[0].name}"), rows, title)


def say_compared(what: str, found: "Comparison") -> None:
    print(f"{what}: {found.median:.4f} (95 %: {found.low:.4f} to {found.high:.4f})")


def say_written(*paths: Path) -> None:
    print(f"written: {', '.join(map(str, paths))}")
