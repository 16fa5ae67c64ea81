"""What `--trace` costs a run: the same training with it and without, one after the other."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradtide.bench import report
from gradtide.bench.training.turns import BLOCK, Comparison, MeasuredTurn, compare, seconds_a_sample, training
from gradtide.errors import ConfigError

__all__ = ["TraceCost", "bench_tracing"]

WAYS = ("without", "with --trace")
_OPTIONS = ((), ("--trace",))


@dataclass(frozen=True, slots=True)
class TraceCost:
    """With to without."""

    rate: Comparison  # samples per second
    cpu: Comparison  # CPU seconds a sample, of all processes
    store_cpu: Comparison  # the same of servers and coordinator


def bench_tracing(
    blocks: int, turn_s: float, tell: Callable[[str], None]
) -> tuple[list[report.Row], TraceCost, dict[str, list[float]]]:
    """Samples per second of two workers with two servers; every turn is a run of its own."""
    if blocks < 2 or turn_s < 1.0:
        raise ConfigError("there must be 2 blocks and turns of 1 s, or more")
    turns: list[list[MeasuredTurn]] = []
    for number in range(blocks):
        tell(f"block {number + 1} of {blocks}")
        turns.append([_turn(way, turn_s) for way in BLOCK])
    cost = TraceCost(
        compare(turns, lambda turn: turn.samples / turn.seconds),
        compare(turns, lambda turn: turn.cpu_s / turn.samples),
        compare(turns, lambda turn: turn.store_cpu_s / turn.samples),
    )
    seconds = seconds_a_sample(turns, WAYS)
    return report.rows(seconds, 1), cost, seconds


def _turn(way: int, turn_s: float) -> MeasuredTurn:
    with (
        tempfile.TemporaryDirectory(prefix="gradtide-bench-") as folder,
        training(Path(folder), "traced", *_OPTIONS[way]) as trained,
    ):
        return trained.turn(turn_s)
