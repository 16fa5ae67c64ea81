"""`gradtide bench staleness`: time to accuracy when workers are not equally fast."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import say_written, telling
from gradtide.cli.table import print_table

__all__ = ["staleness"]


def staleness(
    seeds: Annotated[str, typer.Option(help="Seeds, with commas; each takes nine runs")] = "0,1,2",
    steps: Annotated[int, typer.Option(help="Steps of each worker, in each run")] = 280,
    output: Annotated[
        Path | None, typer.Option(help="JSON file to add to  [default: runs/bench-staleness.json]")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the curves  [default: beside the JSON file]")] = None,
) -> None:
    """Time to 80 % on Fashion-MNIST through servers: bsp, bounded:4 and async, when workers are not equally fast."""
    from gradtide.bench.report import check_output
    from gradtide.bench.staleness import GOAL, TITLES, bench_staleness, draw, keep, table
    from gradtide.errors import ConfigError

    chosen = [seed.strip() for seed in seeds.split(",")]
    if not all(seed.isdecimal() for seed in chosen) or steps < 1:
        raise ConfigError(
            f"--seeds {seeds!r} --steps {steps} makes no sense; write seeds with commas, and 1 step or more"
        )
    path = output or Path("runs") / "bench-staleness.json"
    check_output(path)
    with telling("starting") as tell:
        for result in bench_staleness([int(seed) for seed in chosen], steps, tell):
            results = keep(path, result)
    rows = []
    for line in table(results):
        seconds = [f"{line[name]:.1f}" if name in line else "-" for name in ("mean_s", "min_s", "max_s")]
        rows.append((TITLES[line["weather"]], line["mode"], *seconds, f"{line['reached']} of {line['runs']}"))
    title = f"seconds to a test accuracy of {GOAL:.0%}"
    print_table(("", "mode", "mean s", "min", "max", "reached"), rows, title)
    picture = plot or path.with_suffix(".png")
    draw(results, picture)
    say_written(path, picture)
