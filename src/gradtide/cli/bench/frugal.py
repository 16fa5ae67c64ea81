"""`gradtide bench frugal`: what sending less is worth between two hosts, and what it costs in accuracy."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling
from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.bench.frugal.smaller import SmallerRow

__all__ = ["frugal"]


def frugal(
    model: Annotated[str, typer.Option(help="mlp (80 MB of gradients), deep or lenet")] = "mlp",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over both workers")] = 256,
    rate: Annotated[
        str | None, typer.Option(help="Rate of the wire, as tc writes it  [default: 1gbit; --compress: 100mbit]")
    ] = None,
    every: Annotated[int, typer.Option(help="Steps between meetings, and in a round")] = 50,
    rounds: Annotated[int, typer.Option(help="Every contender runs once in each round; the median counts")] = 3,
    peers: Annotated[Path | None, typer.Option(help="Folder with accelerate and torchft (pip --target)")] = None,
    compress: Annotated[
        bool, typer.Option("--compress", help="Measure smaller messages instead of fewer ones")
    ] = False,
    codecs: Annotated[
        str, typer.Option(help="With --compress: codecs to measure")
    ] = "fp16,bf16,int8,onebit,topk:0.01,powersgd:4",
    turn: Annotated[float, typer.Option(help="With --compress: about how many seconds a turn takes")] = 2.0,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Measure accuracy on Fashion-MNIST, over seeds, instead of speed")
    ] = False,
    seeds: Annotated[int, typer.Option(help="With --accuracy: runs of each contender, paired by seed")] = 8,
    steps: Annotated[int, typer.Option(help="With --accuracy: steps of each run; a multiple of 200")] = 600,
    data: Annotated[str, typer.Option(help="With --accuracy: fashion-mnist, or digits")] = "fashion-mnist",
    picture: Annotated[Path | None, typer.Option(help="With --accuracy: draw the curves here, a.png")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-frugal-TIME.json]")] = None,
) -> None:
    """Compare two workers in two network namespaces (as root) that meet every step, now and then, or never."""
    path = results_path("frugal", output)
    if accuracy:
        from gradtide.bench.frugal.codec_speed import codecs_of

        _accuracy((data, rate or "1gbit", seeds, steps, tuple(codecs_of(codecs) if compress else ())), path, picture)
        return
    if compress:
        _smaller((model, batch_size, rate or "100mbit", codecs, rounds, turn), path)
        return
    from gradtide.bench import report
    from gradtide.bench.frugal.speed import SpeedSettings, bench_speed

    settings = SpeedSettings(model, batch_size, rate or "1gbit", every, rounds, str(peers.absolute()) if peers else "")
    with telling("starting the contenders") as tell:
        found = bench_speed(settings, tell)
    before = {"settings": asdict(settings) | {"predicted_step_s": found.predicted_s, "skipped": found.skipped}}
    report.write(path, found.rows, {**before, "unit": "samples/s"}, {"seconds": found.seconds})
    title = f"{model}, batch {batch_size}, two hosts at {settings.rate}, median of {rounds} rounds"
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


def _smaller(asked: tuple[str, int, str, str, int, float], path: Path) -> None:
    from gradtide.bench import report
    from gradtide.bench.frugal.smaller import SmallerSettings, bench_smaller

    settings = SmallerSettings(*asked)
    with telling("starting the workers") as tell:
        found = bench_smaller(settings, tell)
    speeds = [asdict(speed) for speed in found.speeds]
    report.write(path, found.rows, {"settings": asdict(settings)}, {"codecs": speeds, "seconds": found.seconds})
    title = f"float32 on one core, {4 * settings.codec_values / 1e6:.0f} MB, GB/s, median of {settings.rounds}"
    rates = [(s.codec, f"{s.encode_per_s / 1e9:.2f}", f"{s.decode_per_s / 1e9:.2f}") for s in found.speeds]
    print_table(("", "encodes", "decodes"), rates, title)
    title = f"{settings.model}, batch {settings.batch_size}, two hosts at {settings.rate}, median of {settings.rounds}"
    columns = ("", "MB a step", "payload", "on the wire", "a step, s", "min", "max", "ideal, s", "of ideal")
    print_table(columns, [_smaller_row(row) for row in found.rows], title)
    say_written(path)


def _smaller_row(row: "SmallerRow") -> tuple[str, ...]:
    """Payload and bytes on the wire are in parts of the formula's."""
    parts = [
        f"{size / row.formula_bytes:.3f}" if size is not None and row.formula_bytes else "-"
        for size in (row.payload_bytes, row.wire_bytes)
    ]
    times = (f"{seconds:.3f}" for seconds in (row.step_s, row.step_s_min, row.step_s_max, row.ideal_s))
    return row.name, f"{row.formula_bytes / 1e6:.2f}", *parts, *times, f"{row.of_ideal:.2f}"


def _accuracy(asked: tuple[str, str, int, int, tuple[str, ...]], path: Path, picture: Path | None) -> None:
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
    for name, why in found.skipped.items():
        print(f"{name} took no part: {why}")
    written = [path]
    if picture is not None:
        draw_accuracy(found.runs, picture, title)
        written.append(picture)
    say_written(*written)


def _interval(difference: float | None, half_width: float | None) -> str:
    if difference is None or half_width is None:
        return "-"
    return f"{100 * difference:+.2f} ± {100 * half_width:.2f}"
