"""What shares that follow speed are worth: two workers, of which one sleeps, and two that are alike."""

import json
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gradtide.bench import report
from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError
from gradtide.fair_share import Cost, even_shares, fair_shares, longest_s
from gradtide.train.models import check_model

__all__ = ["CONTENDERS", "BalanceCase", "BalanceFound", "bench_balance"]

WORKERS = 2
# Name in the table -> what balance_peer.py is to be, and whether worker 1 sleeps. The first is the measure.
CONTENDERS = {
    "even": ("even", True),
    "balanced": ("balanced", True),
    "by hand over Gloo, even": ("by-hand", True),
    "alike, even": ("even", False),
    "alike, balanced": ("balanced", False),
}


@dataclass(frozen=True, slots=True)
class BalanceFound:
    """What came of it."""

    rows: list[report.Row]
    seconds: dict[str, list[float]]  # a step, round by round
    shares: dict[str, tuple[int, ...]]  # in the last round
    predicted_s: float  # a balanced step, from what the even one's workers computed
    predicted_gain: float

    @property
    def step_s(self) -> dict[str, float]:
        return {name: median(rounds) for name, rounds in self.seconds.items()}

    @property
    def gain(self) -> float:
        """Of balance where one sleeps: the median of the rounds' ratios, each of runs beside each other."""
        return _ratio(self.seconds["even"], self.seconds["balanced"])

    @property
    def alike(self) -> float:
        """What is left of the throughput of workers that are alike."""
        return _ratio(self.seconds["alike, even"], self.seconds["alike, balanced"])


@dataclass(frozen=True, slots=True)
class BalanceCase:
    """What is measured."""

    model: str = "lenet"
    batch_size: int = 256
    sleeps: float = 2.0  # times its compute time that worker 1 sleeps
    pretend_s: float = 0.0  # if not 0, what a sample is pretended to take

    def check(self) -> None:
        check_model(self.model)
        if self.batch_size < WORKERS or self.sleeps < 0 or self.pretend_s < 0:
            raise ConfigError("the batch needs 2 samples or more, and sleeps are of 0 seconds or more")


def bench_balance(case: BalanceCase, rounds: int, steps: int, tell: Callable[[str], None]) -> BalanceFound:
    """Samples per second of both workers, each with one thread."""
    case.check()
    if rounds < 1 or steps < 1:
        raise ConfigError(f"{rounds} rounds of {steps} steps; there must be 1 of each or more")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")))
        peers = []
        for number, (name, (kind, slow)) in enumerate(CONTENDERS.items()):
            meeting = str(folder / "gloo") if kind == "by-hand" else f"bench-{uuid.uuid4().hex}"
            task = [kind, str(case.sleeps if slow else 0.0), str(case.pretend_s), case.model, str(case.batch_size)]
            task += [meeting, str(folder / str(number))]
            commands = [["-m", "gradtide.bench.frugal.balance_peer", *task, str(rank)] for rank in range(WORKERS)]
            peers.append(stack.enter_context(Contender(name, commands)))
            peers[-1].wait_until_ready()  # its workers measure each other: the next one starts when they are done
        seconds = interleave(peers, rounds, lambda name: steps, tell)
        said = {
            name: [_read(folder / f"{number}-{rank}", rounds) for rank in range(WORKERS)]
            for number, name in enumerate(CONTENDERS)
        }
    shares = {name: tuple(of_worker[-1][1] for of_worker in workers) for name, workers in said.items()}
    predicted_s, gain = _predict(said["even"], median(seconds["even"]), case.batch_size)
    return BalanceFound(report.rows(seconds, case.batch_size), seconds, shares, predicted_s, gain)


def _read(path: Path, rounds: int) -> list[tuple[float, int]]:
    """Compute seconds and samples of a worker's steps, a pair a round; the first line is of warming up."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["seconds"], line["samples"]) for line in lines[-rounds:]]


def _predict(workers: list[list[tuple[float, int]]], even_s: float, batch_size: int) -> tuple[float, float]:
    """A balanced step, from an even one: what is not computing stays."""
    costs = [Cost(0.0, median(seconds / samples for seconds, samples in of_worker)) for of_worker in workers]
    computes_s = longest_s(costs, even_shares(batch_size, len(costs)))
    predicted_s = even_s - computes_s + longest_s(costs, fair_shares(costs, batch_size))
    return predicted_s, even_s / predicted_s


def _ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))
