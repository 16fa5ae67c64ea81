"""`gradtide bench frugal`: what sending less is worth between two hosts, and what it costs in accuracy."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling
from gradtide.cli.table import print_table

__all__ = ["frugal"]


def frugal(
    model: Annotated[str, typer.Option(help="mlp (80 MB of gradients), deep or lenet")] = "mlp",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over both workers")] = 256,
    rate: Annotated[str, typer.Option(help="Of the wire between the hosts, as tc writes it")] = "1gbit",
    every: Annotated[int, typer.Option(help="Steps between meetings; a round has as many")] = 50,
    rounds: Annotated[int, typer.Option(help="Every contender runs once a round; the median counts")] = 3,
    peers: Annotated[Path | None, typer.Option(help="Folder with accelerate and torchft (pip --target)")] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Not how fast: what Fashion-MNIST's accuracy becomes, over seeds")
    ] = False,
    seeds: Annotated[int, typer.Option(help="With --accuracy: runs of each, paired by seed")] = 8,
    steps: Annotated[int, typer.Option(help="With --accuracy: of each run; a multiple of 200")] = 600,
    data: Annotated[str, typer.Option(help="With --accuracy: fashion-mnist, or digits")] = "fashion-mnist",
    picture: Annotated[Path | None, typer.Option(help="With --accuracy: where its curves are drawn, a.png")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-frugal-TIME.json]")] = None,
) -> None:
    """Two workers in two network namespaces (as root) that meet every step, now and then, or never."""
    path = results_path("frugal", output)
    if accuracy:
        _accuracy((data, rate, seeds, steps), path, picture)
        return
    from gradtide.bench import report
    from gradtide.bench.frugal.speed import SpeedSettings, bench_speed

    settings = SpeedSettings(model, batch_size, rate, every, rounds, str(peers.absolute()) if peers else "")
    with telling("starting the contenders") as tell:
        found = bench_speed(settings, tell)
    before = {"settings": asdict(settings) | {"predicted_step_s": found.predicted_s, "skipped": found.skipped}}
    report.write(path, found.rows, {**before, "unit": "samples/s"}, {"seconds": found.seconds})
    title = f"{model}, batch {batch_size}, two hosts at {rate}, median of {rounds} rounds"
    print_rates(title, "samples/s", found.rows)
    measured = {row.name: batch_size // 2 * 2 / row.per_s for row in found.rows}
    rows = [
        (name, f"{measured[name]:.3f}", f"{step_s:.3f}", f"{100 * (step_s / measured[name] - 1):+.0f} %")
        for name, step_s in found.predicted_s.items()
    ]
    print_table(("", "a step, s", "predicted", "off by"), rows)
    for name, why in found.skipped.items():
        print(f"{name} took no part: {why}")
    say_written(path)


def _accuracy(asked: tuple[str, str, int, int], path: Path, picture: Path | None) -> None:
    from gradtide.bench import report
    from gradtide.bench.frugal.accuracy import AccuracySettings, bench_accuracy
    from gradtide.bench.frugal.pictures import draw_accuracy

    settings = AccuracySettings(*asked)
    with telling("starting the workers") as tell:
        found = bench_accuracy(settings, tell)
    report.write(path, found.rows, {"settings": asdict(settings)}, {"curves": [asdict(run) for run in found.runs]})
    rows = [
        (
            row.name,
            f"{100 * row.accuracy:.2f} %",
            _interval(row.difference, row.half_width),
            f"{row.megabytes:.1f}",
            f"{row.seconds:.1f}",
        )
        for row in found.rows
    ]
    title = f"{settings.data}, {settings.samples:,} samples, {settings.seeds} seeds, two hosts at {settings.rate}"
    print_table(("", "test accuracy", "from dense, points", "MB sent", "s"), rows, title)
    written = [path]
    if picture is not None:
        draw_accuracy(found.runs, picture, title)
        written.append(picture)
    say_written(*written)


def _interval(difference: float | None, half_width: float | None) -> str:
    if difference is None or half_width is None:
        return "-"
    return f"{100 * difference:+.2f} ± {100 * half_width:.2f}"
