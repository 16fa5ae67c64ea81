"""One worker of `bench frugal --accuracy`: SETTINGS OUTPUT; its rank is in the environment.

Trains a small network anew for every seed and every way, one after the other, so that all ways have the same noise.
Worker 0 says where it is, and writes the curves: the clock stands still while the test data is evaluated.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.events import Event, GradientsSynchronised
from gradtide.sync import Job
from gradtide.train.settings import Settings

__all__ = ["BATCH", "LearnerWay", "LearningCurve", "main", "ways_of"]

BATCH, HIDDEN, LR, MOMENTUM = 128, 256, 0.05, 0.9  # the batch of both workers
LOOKS = 8  # at the test data, about so many in a run, and where workers have met


@dataclass(frozen=True, slots=True)
class LearnerWay:
    """How gradients, or changes, are exchanged."""

    every: int = 0  # steps between meetings; 0: all are taken together
    outer: bool = False  # whether an outer optimizer steps
    compress: str | None = None


_DENSE = "every step together"
LOCAL_WAYS = {
    _DENSE: LearnerWay(),
    "Local(8)": LearnerWay(8),
    "Local(50)": LearnerWay(50),
    "Local(50, outer)": LearnerWay(50, outer=True),
}


def ways_of(codecs: Sequence[str]) -> dict[str, LearnerWay]:
    """Name -> way; the first is what others are compared with. Without codecs: those that meet less often."""
    if not codecs:
        return LOCAL_WAYS
    both = {"Local(8), int8": LearnerWay(8, compress="int8")} if "int8" in codecs else {}
    return {_DENSE: LearnerWay(), **{codec: LearnerWay(compress=codec) for codec in codecs}, **both}


@dataclass(slots=True)
class LearningCurve:
    """One run: what was reached, after so many bytes that a worker sent and so many seconds."""

    name: str
    seed: int
    steps: list[int]
    accuracy: list[float]
    megabytes: list[float]
    seconds: list[float]


class _Learner:
    """One run of one way."""

    def __init__(self, name: str, way: LearnerWay, seed: int, group: Group) -> None:
        self.every = way.every
        torch.manual_seed(seed)
        self._net = nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
        optimizer = torch.optim.SGD(self._net.parameters(), lr=LR, momentum=MOMENTUM)
        rule = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True) if way.outer else None
        sync = gradtide.Local(self.every, rule) if self.every else "auto"
        self._job, self._sent = Job.of(group), 0
        self._model = gradtide.DataParallel(
            self._net, optimizer, sync, compress=way.compress, job=self._job, emit=self._observe
        )
        self.curve = LearningCurve(name, seed, [], [], [], [])
        self._seconds = 0.0

    def _observe(self, event: Event) -> None:
        if isinstance(event, GradientsSynchronised):
            self._sent += event.wire_bytes

    def train(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], steps: int, group: Group) -> None:
        between = max(1, steps // LOOKS // (self.every or 1)) * (self.every or 1)
        begun_s = time.perf_counter()
        for step, (inputs, targets) in enumerate(
            gradtide.shard(_batches(train, self.curve.seed, steps), job=self._job), 1
        ):
            functional.cross_entropy(self._model(inputs), targets).backward()
            self._model.step()
            if step % between == 0 or step == steps:
                self._seconds += time.perf_counter() - begun_s
                if group.rank == 0:
                    self._look(step, test)
                group.barrier()
                begun_s = time.perf_counter()
        self._model.close()

    def _look(self, step: int, test: tuple[Tensor, Tensor]) -> None:
        with torch.no_grad():
            right = (self._net(test[0]).argmax(1) == test[1]).float().mean().item()
        curve = self.curve
        curve.steps.append(step)
        curve.accuracy.append(right)
        curve.megabytes.append(self._sent / 1e6)
        curve.seconds.append(self._seconds)


def _batches(train: tuple[Tensor, Tensor], seed: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """The same for every way of a seed."""
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    while len(order) < steps * BATCH:
        order = torch.cat([order, torch.randperm(len(train[0]), generator=generator)])
    return [(train[0][chosen], train[1][chosen]) for chosen in order[: steps * BATCH].split(BATCH)]


def main() -> None:
    settings, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    train, test = Settings("lenet", settings["data"], None, {}).load()
    group, curves, skipped = Group.from_environment(), [], dict[str, str]()
    for seed in range(settings["seeds"]):
        for name, way in ways_of(settings["codecs"]).items():
            if name in skipped:
                continue
            try:
                learner = _Learner(name, way, seed, group)
            except ConfigError as error:  # on both workers alike, before anything is sent
                skipped[name] = str(error)
                continue
            learner.train(train, test, settings["steps"], group)
            curves.append(asdict(learner.curve))
            if group.rank == 0:
                print(f"seed {seed + 1} of {settings['seeds']}: {name}", flush=True)
        if group.rank == 0:
            output.write_text(json.dumps({"curves": curves, "skipped": skipped}))
    group.barrier()


if __name__ == "__main__":
    main()
