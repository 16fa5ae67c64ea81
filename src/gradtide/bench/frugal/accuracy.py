"""What sending less costs: accuracy after equal samples, as paired differences from training together."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import mean

from gradtide.bench.frugal.learner import BATCH, LearningCurve, ways_of
from gradtide.bench.frugal.pair import run_pair
from gradtide.bench.frugal.paired import paired_difference
from gradtide.errors import ConfigError
from gradtide.testing.hosts import two_hosts
from gradtide.train.settings import Settings

__all__ = ["AccuracyRow", "AccuracySettings", "FrugalAccuracy", "bench_accuracy"]

_PORT, _GRAIN = 29_790, 200  # all ways meet after so many steps


@dataclass(frozen=True, slots=True)
class AccuracySettings:
    """What is trained, and how often."""

    data: str = "fashion-mnist"
    rate: str = "1gbit"
    seeds: int = 8
    steps: int = 600
    codecs: tuple[str, ...] = ()  # compared with training together; none: those that meet less often

    def check(self) -> None:
        if self.seeds < 2 or self.steps < _GRAIN or self.steps % _GRAIN:
            raise ConfigError(f"2 seeds or more are needed, and a multiple of {_GRAIN} steps, where all ways have met")
        Settings("lenet", self.data, None, {}).load()

    @property
    def samples(self) -> int:
        return self.steps * BATCH


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One way over all seeds, at the end."""

    name: str
    accuracy: float  # mean
    difference: float | None  # mean difference from training together, in each seed; None for that itself
    half_width: float | None  # of its 95 % interval
    megabytes: float  # that a worker sent
    seconds: float  # mean


@dataclass(frozen=True, slots=True)
class FrugalAccuracy:
    """What was found."""

    rows: list[AccuracyRow]
    runs: list[LearningCurve]
    skipped: dict[str, str]  # who could not take part, and why


def bench_accuracy(settings: AccuracySettings, tell: Callable[[str], None]) -> FrugalAccuracy:
    settings.check()
    with two_hosts(settings.rate) as hosts:
        found = run_pair(hosts, "gradtide.bench.frugal.learner", asdict(settings), _PORT, tell)
    runs = [LearningCurve(**curve) for curve in found["curves"]]
    names = [name for name in ways_of(settings.codecs) if name not in found["skipped"]]
    return FrugalAccuracy(_rows(runs, names), runs, found["skipped"])


def _rows(runs: list[LearningCurve], names: list[str]) -> list[AccuracyRow]:
    of_way = {name: sorted((run for run in runs if run.name == name), key=lambda run: run.seed) for name in names}
    last = {name: [run.accuracy[-1] for run in of] for name, of in of_way.items()}
    dense, rows = names[0], []
    for name, of in of_way.items():
        difference, half = (None, None) if name == dense else paired_difference(last[name], last[dense])
        sent, seconds = mean(run.megabytes[-1] for run in of), mean(run.seconds[-1] for run in of)
        rows.append(AccuracyRow(name, mean(last[name]), difference, half, sent, seconds))
    return rows
