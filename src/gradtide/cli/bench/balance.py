"""`gradtide bench balance`: what shares that follow speed are worth."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gradtide.cli.bench.common import print_rates, results_path, say_written, telling

__all__ = ["balance"]


def balance(
    model: Annotated[str, typer.Option(help="lenet, mlp or deep")] = "lenet",
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over both workers")] = 256,
    sleeps: Annotated[float, typer.Option(help="Worker 1 sleeps N times its compute time")] = 2.0,
    pretend: Annotated[float, typer.Option(help="Sleep N ms for each sample instead of computing")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Every contender runs once in each round; the median counts")] = 7,
    steps: Annotated[int, typer.Option(help="Batches in a round")] = 20,
    output: Annotated[Path | None, typer.Option(help="JSON file  [default: runs/bench-balance-TIME.json]")] = None,
) -> None:
    """Compare equal shares with shares by speed: for two workers one of which sleeps, and for two equal ones."""
    from gradtide.bench import report
    from gradtide.bench.frugal.balance import BalanceCase, bench_balance

    path = results_path("balance", output)
    with telling("starting the contenders") as tell:
        case = BalanceCase(model, batch_size, sleeps, pretend / 1e3)
        found = bench_balance(case, rounds, steps, tell)
    settings = {**asdict(case), "rounds": rounds, "steps": steps}
    figures: dict[str, Any] = {"gain": found.gain, "predicted_gain": found.predicted_gain, "alike": found.alike}
    figures |= {"step_s": found.step_s, "predicted_step_s": found.predicted_s, "shares": found.shares}
    before = {"settings": settings, "unit": "samples/s", "figures": figures}
    report.write(path, found.rows, before, {"seconds": found.seconds})
    title = f"{model}, batch {batch_size}, worker 1 sleeps {sleeps:g} times its compute time, median of {rounds} rounds"
    print_rates(title, "samples/s", found.rows)
    shares = " and ".join(map(str, found.shares["balanced"]))
    print(f"balanced: {shares} samples, {found.gain:.2f} times as fast as even; predicted {found.predicted_gain:.2f}")
    print(f"workers that are alike keep {found.alike:.3f} of their throughput")
    say_written(path)
