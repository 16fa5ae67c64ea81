"""One worker of one contender of `bench balance`: KIND SLEEPS PRETEND MODEL BATCH MEETING RESULT RANK.

A worker that sleeps does so after forward and backward, for so many times as long as they took. Gradients leave after
that, in all contenders alike: a step's compute time is known, and no waiting is in it. PRETEND, if not 0, is what a
sample takes: then each worker computes on one sample alone, and sleeps for the others. That needs no quiet machine.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.bench.contender import serve
from gradtide.bench.peers.training import LR, Batch, random_batch
from gradtide.collective import Group
from gradtide.even_share import even_share
from gradtide.sync import Job
from gradtide.train.models import build_model

WORKERS = 2
_SETTLE_STEPS = 30


class Same(Iterable[Batch]):
    """One batch, again and again."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Batch]:
        return repeat(self._batch)


@dataclass(slots=True)
class BalanceTask:
    """What all contenders do alike."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Batch
    meeting: str
    rank: int
    sleeps: float
    pretend_s: float
    seconds: list[float] = field(default_factory=list)  # that forward, backward and sleep took, and of how many samples
    samples: list[int] = field(default_factory=list)

    def compute(self, model: nn.Module, part: Batch, apart: Any = nullcontext) -> None:
        began_s, (inputs, targets) = time.perf_counter(), part
        if self.pretend_s:
            time.sleep(self.pretend_s * len(inputs))
            inputs, targets = inputs[:1], targets[:1]
        with apart():
            functional.cross_entropy(model(inputs), targets).backward()
        time.sleep(self.sleeps * (time.perf_counter() - began_s))
        self.seconds.append(time.perf_counter() - began_s)
        self.samples.append(len(part[0]))


RepeatAndBarrier = tuple[Callable[[int], None], Callable[[], object]]


def by_hand(work: BalanceTask) -> RepeatAndBarrier:
    """Plain PyTorch and an all-reduce over Gloo, as in a textbook."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{work.meeting}", rank=work.rank, world_size=WORKERS)
    parameters = list(work.model.parameters())
    begin, end = even_share(len(work.batch[0]), work.rank, WORKERS)
    part = work.batch[0][begin:end], work.batch[1][begin:end]

    def repeat(steps: int) -> None:
        for _ in range(steps):
            work.compute(work.model, part)
            flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
            flat.mul_((end - begin) / len(work.batch[0]))
            dist.all_reduce(flat)
            pieces = flat.split([p.numel() for p in parameters])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)
            work.optimizer.step()
            work.optimizer.zero_grad()

    return repeat, dist.barrier


def _gradtide(work: BalanceTask, *, balance: bool) -> RepeatAndBarrier:
    group = Group.join(work.meeting, work.rank, WORKERS)
    job = Job.of(group)
    model = gradtide.DataParallel(work.model, work.optimizer, job=job)
    loader = Same(work.batch)

    def repeat(steps: int) -> None:
        for part in islice(gradtide.shard(loader, balance=balance, job=job), steps):
            work.compute(model, part, model.no_sync)
            model.step()

    return repeat, group.barrier


KINDS: dict[str, Callable[[BalanceTask], RepeatAndBarrier]] = {
    "by-hand": by_hand,
    "even": lambda work: _gradtide(work, balance=False),
    "balanced": lambda work: _gradtide(work, balance=True),
}


def main() -> None:
    kind, sleeps, pretend_s, name, batch_size, meeting, result, rank = sys.argv[1:]
    torch.set_num_threads(1)
    model = build_model(name, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    slept = float(sleeps) if rank == "1" else 0.0
    work = BalanceTask(model, optimizer, random_batch(int(batch_size)), meeting, int(rank), slept, float(pretend_s))
    steps, barrier = KINDS[kind](work)
    steps(_SETTLE_STEPS)

    def repeat(count: int) -> None:
        work.seconds.clear()
        steps(count)
        found = {"seconds": median(work.seconds), "samples": work.samples[-1]}
        with Path(f"{result}-{rank}").open("a") as file:
            file.write(json.dumps(found) + "\n")

    serve(repeat, barrier)


if __name__ == "__main__":
    main()
