"""`gradtide bench split`: a model on two processes, beside torch's own pipelines, or beside what was predicted."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling
from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.bench.split.predictions import PredictedRow

__all__ = ["split"]


def split(
    model: Annotated[str, typer.Option(help="lenet, mlp or deep (--predict takes all it knows)")] = "deep",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch")] = 256,
    micro_batches: Annotated[int, typer.Option(help="Parts of a batch that are under way at once")] = 4,
    rounds: Annotated[int, typer.Option(help="Every contender runs once in each round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="Batches in a round")] = 5,
    predict: Annotated[
        bool, typer.Option("--predict", help="Compare predicted and measured step times, over five models and layouts")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-split-TIME.json]")] = None,
) -> None:
    """Compare a pipeline of two processes with torch.distributed.pipelining, with the same cut."""
    path = results_path("split", output)
    if predict:
        _predict(path, rounds, steps)
        return
    from gradtide.bench import report
    from gradtide.bench.split.pipelines import bench_pipelines, lines_written

    with telling("starting the contenders") as tell:
        found, seconds = bench_pipelines(model, batch_size, micro_batches, rounds, steps, tell)
    settings = {"model": model, "batch_size": batch_size, "micro_batches": micro_batches}
    settings |= {"rounds": rounds, "steps": steps, "lines": lines_written()}
    report.write(path, found, {"settings": settings, "unit": "samples/s"}, {"seconds": seconds})
    title = f"{model}, batch {batch_size} in {micro_batches} parts, 2 processes, median of {rounds} rounds"
    print_rates(title, "samples/s", found)
    print_table(("", "lines that a user writes"), [(name, str(count)) for name, count in lines_written().items()])
    say_written(path)


def _beside(row: "PredictedRow", kind: str) -> str:
    """What was predicted of one kind of task, and measured. Exchanges and updates wait for the other process too."""
    if kind not in row.measured_tasks_s:
        return ""
    return f"{row.predicted_tasks_s.get(kind, 0.0) * 1e3:.1f} / {row.measured_tasks_s[kind] * 1e3:.1f}"


def _predict(path: Path, rounds: int, steps: int) -> None:
    from gradtide.bench import report
    from gradtide.bench.split.predictions import PREDICTED, bench_predictions, verdict_of

    with telling("starting") as tell:
        found, skipped = bench_predictions(tuple(PREDICTED), rounds, steps, tell)
    verdict = verdict_of(found)
    settings = {"batches": PREDICTED, "rounds": rounds, "steps": steps}
    report.write(path, found, {"settings": settings, "unit": "s"}, {"verdict": asdict(verdict), "skipped": skipped})
    shown = [
        (row.model, row.layout, f"{row.predicted_s * 1e3:.2f}", f"{row.measured_s * 1e3:.2f}", f"{row.error:+.1%}")
        for row in found
    ]
    title = f"2 processes, median of {rounds} rounds of {steps} steps"
    print_table(("model", "layout", "predicted ms", "measured ms", "error"), shown, title)
    kinds = list(dict.fromkeys(kind for row in found for kind in row.measured_tasks_s))
    spent = [(row.model, row.layout, *(_beside(row, kind) for kind in kinds)) for row in found]
    print_table(("model", "layout", *kinds), spent, "the first process's tasks, predicted / measured ms")
    for what, why in skipped.items():
        print(f"not run: {what}: {why}")
    print(f"{verdict.pairs} pairs: median error {verdict.median_error:.1%}, worst {verdict.worst_error:.1%}")
    for name, slower in verdict.taken.items():
        print(f"{name}: what the planner takes is {slower:.1%} slower than the best measured")
    say_written(path)
