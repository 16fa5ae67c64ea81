"""`gradtide bench dashboard`: what looking costs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling

__all__ = ["dashboard"]


def dashboard(
    rounds: Annotated[
        int, typer.Option(help="Rounds of one turn with a reader and one without; the median counts")
    ] = 15,
    turn_s: Annotated[float, typer.Option(help="Seconds of a turn")] = 10.0,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-dashboard-TIME.json]")] = None,
) -> None:
    """Compare training with a dashboard and a reader of its stream, and without, in turn."""
    from gradtide.bench import report
    from gradtide.bench.training.watching import bench_watching

    path = results_path("dashboard", output)
    with telling("starting the training") as tell:
        rows, watched, seconds = bench_watching(rounds, turn_s, tell)
    before = {"settings": {"rounds": rounds, "turn_s": turn_s}, "unit": "samples/s", "watched": asdict(watched)}
    report.write(path, rows, before, {"seconds": seconds})
    print_rates(f"LeNet, 2 workers, 2 servers, {rounds} turns of {turn_s:g} s each", "samples/s", rows)
    print(
        f"with a reader {watched.median:.3f} of without, turn by turn (the middle half: {watched.least:.3f} to "
        f"{watched.most:.3f}); it was sent {watched.messages:,} messages"
    )
    say_written(path)
