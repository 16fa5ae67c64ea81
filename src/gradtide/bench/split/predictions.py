"""What was predicted of a step on two processes beside what it took, over models and layouts."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gradtide.bench.contender import ROUND_S, ContenderFailed
from gradtide.errors import ConfigError

__all__ = ["PREDICTED", "PredictedRow", "Verdict", "bench_predictions", "rows_of", "verdict_of"]

PREDICTED = {"mlp": 256, "deep": 256, "lenet": 256, "alexnet-small": 64, "transformer": 32}  # models and their batches
TAKEN = "what the planner takes"


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One pair of a model and a layout."""

    model: str
    layout: str
    predicted_s: float
    measured_s: float
    text: str = ""  # the layout in words
    predicted_tasks_s: dict[str, float] = field(default_factory=dict)  # of the first device, by kind of task
    measured_tasks_s: dict[str, float] = field(default_factory=dict)  # the same, without waiting for messages

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """Over all pairs; `taken` has, by model, how much slower the planner's layout was than the best measured one."""

    pairs: int
    median_error: float
    worst_error: float
    taken: dict[str, float]


def bench_predictions(
    models: Sequence[str], rounds: int, steps: int, tell: Callable[[str], None]
) -> tuple[list[PredictedRow], dict[str, str]]:
    """One model after the other, each on two processes of its own; also what could not be run, and why."""
    unknown = next((name for name in models if name not in PREDICTED), None)
    if unknown is not None:
        raise ConfigError(f"unknown model {unknown!r}; choose one of {', '.join(PREDICTED)}")
    if rounds < 1 or steps < 1:
        raise ConfigError("there must be 1 round and 1 step or more")
    found, skipped = list[PredictedRow](), dict[str, str]()
    for name in models:
        tell(f"{name}: profiling, then running its layouts")
        told = _run(name, rounds, steps)
        found += rows_of(name, told)
        skipped |= {f"{name}, {layout}": why for layout, why in told["skipped"].items()}
    return found, skipped


def _run(name: str, rounds: int, steps: int) -> dict[str, Any]:
    meeting = f"predictions-{uuid.uuid4().hex}"
    given = [name, str(PREDICTED[name]), str(rounds), str(steps), meeting]
    command = [sys.executable, "-m", "gradtide.bench.split.predicting_peer", *given]
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, start_new_session=True)
        for rank in range(2)
    ]
    try:
        texts = [one.communicate(timeout=ROUND_S)[0] for one in started]
    except subprocess.TimeoutExpired:
        raise ContenderFailed(f"{name} did not answer within {ROUND_S:.0f} s") from None
    finally:
        for one in started:
            one.kill()
            one.wait()
    if any(one.returncode for one in started):
        raise ContenderFailed(f"a process of {name} failed; its messages are above")
    told: dict[str, Any] = json.loads(texts[0])
    return told


def rows_of(name: str, told: Mapping[str, Any]) -> list[PredictedRow]:
    return [PredictedRow(name, **row) for row in told["rows"]]


def verdict_of(rows: Sequence[PredictedRow]) -> Verdict:
    errors = [abs(row.error) for row in rows]
    taken = {}
    for name in dict.fromkeys(row.model for row in rows):
        of_model = {row.layout: row.measured_s for row in rows if row.model == name}
        if TAKEN in of_model:
            taken[name] = of_model[TAKEN] / min(of_model.values()) - 1
    return Verdict(len(rows), median(errors), max(errors), taken)
