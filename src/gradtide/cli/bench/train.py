"""`gradtide bench train`: devices of one process, or workers, against PyTorch alone and DDP over Gloo."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.bench.common import print_rates, print_results, results_path, say_written, telling
from gradtide.errors import ConfigError

__all__ = ["train"]


def train(
    model: Annotated[str, typer.Option(help="lenet, mlp or deep")] = "lenet",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over all devices or workers")] = 256,
    workers: Annotated[int, typer.Option(help="Use N processes, instead of the devices of one")] = 0,
    trainer: Annotated[str, typer.Option(help="lightning: its Trainer over gradtide, and over DDP with Gloo")] = "",
    rounds: Annotated[int, typer.Option(help="Every contender runs once in each round; the median counts")] = 5,
    steps: Annotated[int, typer.Option(help="Batches in a round")] = 20,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-train-TIME.json]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table")] = False,
) -> None:
    """Data-parallel training on two devices against plain PyTorch, the textbook's loop and DDP over Gloo.

    With --workers 2: in processes of one thread each, against some that never synchronise, and DDP over Gloo.
    With --trainer lightning: such processes under Lightning's Trainer, with gradtide's strategy and with DDP.
    """
    from gradtide.bench import report
    from gradtide.bench.train import bench_train
    from gradtide.bench.training.lightning_trainer import bench_lightning
    from gradtide.bench.training.workers import bench_workers

    if trainer not in ("", "lightning"):
        raise ConfigError(f"--trainer {trainer!r} is unknown; it can be lightning")
    workers = workers or (2 if trainer else 0)
    path = results_path("train", output)
    settings = {"model": model, "batch_size": batch_size, "workers": workers, "rounds": rounds, "steps": steps}
    settings |= {"trainer": trainer} if trainer else {}
    with telling("starting the contenders") as tell:
        if trainer:
            found, seconds = bench_lightning(model, batch_size, workers, rounds, steps, tell)
        elif workers:
            found, seconds = bench_workers(model, batch_size, workers, rounds, steps, tell)
        else:
            found, seconds = bench_train(model, batch_size, rounds, steps, tell)
    report.write(path, found, {"settings": settings, "unit": "samples/s"}, {"seconds": seconds})
    if as_json:
        print_results(found)
        return
    print_rates(f"{model}, batch {batch_size}, median of {rounds} rounds", "samples/s", found)
    say_written(path)
