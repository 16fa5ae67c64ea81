"""Small differences between two ways to run the same training: short turns in ABBA order, compared block by block.

A machine that others use, too, is faster now and slower then by more than what is looked for. Within a block of four
turns (A, B, B, A) what changes evenly cancels out, and of many blocks the median counts.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gradtide.bench.contender import ContenderFailed
from gradtide.chaos.footprint import cpu_seconds, descendants

__all__ = ["BLOCK", "Comparison", "MeasuredTurn", "Training", "compare", "seconds_a_sample", "training"]

BLOCK = (0, 1, 1, 0)  # the first way, the second, the second, the first
_READY_S = 120.0
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """What was done in some seconds."""

    samples: float
    seconds: float  # that they took
    cpu_s: float  # of all processes of the training in that time
    store_cpu_s: float  # of its servers and coordinator


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second way as a ratio to the first: the median of all blocks, and where it lies with 95 % (bootstrap)."""

    median: float
    low: float
    high: float


def compare(blocks: Sequence[Sequence[MeasuredTurn]], measure: Callable[[MeasuredTurn], float]) -> Comparison:
    """By something of which a block's turns can be added up, like samples per second."""
    ratios = [_ratio([measure(turn) for turn in block]) for block in blocks]
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    return Comparison(median(ratios), medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)])


def _ratio(values: Sequence[float]) -> float:
    sums = [sum(value for way, value in zip(BLOCK, values, strict=True) if way == which) for which in (0, 1)]
    return sums[1] / sums[0]


def seconds_a_sample(blocks: Sequence[Sequence[MeasuredTurn]], names: Sequence[str]) -> dict[str, list[float]]:
    """Of every turn, by the name of its way."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for block in blocks:
        for way, turn in zip(BLOCK, block, strict=True):
            found[names[way]].append(turn.seconds / turn.samples)
    return found


class Training:
    """A run that goes on: two workers and two servers, each a process of its own."""

    def __init__(self, steps: Path, pid: int) -> None:
        self.steps = steps  # where its first worker notes each step
        self._all = (pid, *(child for child, _ in descendants(pid)))
        self._store = tuple(one for one in self._all if _name(one).startswith(("server-", "coordinator")))

    def turn(self, turn_s: float) -> MeasuredTurn:
        """What it does in the next seconds, in whole epochs: the evaluations between them would make turns differ. The
        samples are those of the first worker; the second takes as many."""
        begun, before, began_s = self.steps.stat().st_size, self._cpu_seconds(), time.monotonic()
        ends: list[int] = []
        while len(ends) < 2:  # on a busy machine an epoch may take longer than a turn
            if time.monotonic() - began_s > _READY_S:
                raise ContenderFailed(f"no whole epoch was trained within {_READY_S:g} s")
            time.sleep(turn_s)  # the turn itself
            told = _told_since(self.steps, begun)
            ends = [at for at, event in enumerate(told) if event["event"] == "EpochDone"]
        after, ended_s = self._cpu_seconds(), time.monotonic()
        samples = sum(event["samples"] for event in told[ends[0] : ends[-1]] if event["event"] == "BatchDone")
        seconds = told[ends[-1]]["at_s"] - told[ends[0]]["at_s"]
        share = seconds / (ended_s - began_s)
        return MeasuredTurn(samples, seconds, *((b - a) * share for a, b in zip(before, after, strict=True)))

    def _cpu_seconds(self) -> tuple[float, float]:
        return sum(map(cpu_seconds, self._all)), sum(map(cpu_seconds, self._store))


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@contextmanager
def training(folder: Path, name: str, *options: str) -> Iterator[Training]:
    """A training in `folder`/`name`, until we are done with it."""
    command = [sys.executable, "-m", "gradtide", "train", "--workers", "2", "--servers", "2", "--epochs", "1000000"]
    process = subprocess.Popen(
        [*command, "--name", name, "--output", str(folder), *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    steps = folder / name / "worker-0.jsonl"
    try:
        _wait_for_steps(process, steps)
        yield Training(steps, process.pid)
    finally:
        process.terminate()  # not SIGINT: under nohup and & it would be ignored
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _wait_for_steps(process: "subprocess.Popen[bytes]", steps: Path) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not (steps.exists() and len(_told_since(steps, 0)) > 10):
        if process.poll() is not None:
            said = process.communicate()[1].decode(errors="replace").strip().splitlines()
            raise ContenderFailed(f"the training ended at once: {said[-1] if said else 'without a word'}")
        if time.monotonic() > deadline_s:
            raise ContenderFailed(f"the training did not begin within {_READY_S:g} s")
        time.sleep(0.1)


def _told_since(steps: Path, begun: int) -> list[dict[str, Any]]:
    """The ends of steps and epochs."""
    with steps.open("rb") as file:
        file.seek(begun)
        lines = file.read().split(b"\n")[:-1]  # the last may be half written, the first too
    found = [json.loads(line) for line in lines if line.startswith(b"{") and b"Done" in line]
    return [event for event in found if event["event"] in ("BatchDone", "EpochDone")]
