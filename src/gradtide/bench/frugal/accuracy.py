"""What meeting less often costs: accuracy after equal samples, as paired differences from training together."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from gradtide.bench.contender import ContenderFailed
from gradtide.bench.frugal.learner import BATCH, WAYS, LearningCurve
from gradtide.bench.frugal.paired import paired_difference
from gradtide.errors import ConfigError
from gradtide.testing.hosts import ADDRESSES, two_hosts
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


def bench_accuracy(settings: AccuracySettings, tell: Callable[[str], None]) -> FrugalAccuracy:
    settings.check()
    with ExitStack() as stack:
        output = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-"))) / "curves.json"
        hosts = stack.enter_context(two_hosts(settings.rate))
        command = [sys.executable, "-m", "gradtide.bench.frugal.learner", json.dumps(asdict(settings)), str(output)]
        processes = []
        for rank, host in enumerate(hosts):
            told = ["env", f"RANK={rank}", "WORLD_SIZE=2", f"MASTER_ADDR={ADDRESSES[0]}", f"MASTER_PORT={_PORT}"]
            process = subprocess.Popen([*host, *told, *command], stdout=subprocess.PIPE, text=True)
            stack.callback(_end, process)
            processes.append(process)
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            tell(line.strip())
        codes = [process.wait() for process in processes]
        if any(codes):
            raise ContenderFailed(f"a worker ended with exit code {max(codes)}; its messages are above")
        runs = [LearningCurve(**curve) for curve in json.loads(output.read_text())]
    return FrugalAccuracy(_rows(runs), runs)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _rows(runs: list[LearningCurve]) -> list[AccuracyRow]:
    of_way = {name: sorted((run for run in runs if run.name == name), key=lambda run: run.seed) for name in WAYS}
    last = {name: [run.accuracy[-1] for run in of] for name, of in of_way.items()}
    dense, rows = next(iter(WAYS)), []
    for name, of in of_way.items():
        difference, half = (None, None) if name == dense else paired_difference(last[name], last[dense])
        sent, seconds = mean(run.megabytes[-1] for run in of), mean(run.seconds[-1] for run in of)
        rows.append(AccuracyRow(name, mean(last[name]), difference, half, sent, seconds))
    return rows
