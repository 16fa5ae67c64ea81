"""One worker of one contender of `bench frugal`: KIND MODEL BATCH EVERY LINKS PEERS; its rank is in the environment.

Worker 0 of the first of ours writes to LINKS, before anything is measured, what is predicted from.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import gradtide
from gradtide.bench.contender import repeating, serve
from gradtide.bench.frugal import rivals
from gradtide.bench.peers.overlap import predict_step, timeline
from gradtide.bench.peers.training import LR, Batch, Step, plain_step, random_batch, wrapped_step
from gradtide.collective import Group
from gradtide.processes.malloc import keep_freed_memory
from gradtide.store.wire.messages import UpdateRule
from gradtide.sync import Job
from gradtide.train.models import build_model

__all__ = ["main"]

OUTER: dict[str, Any] = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


@dataclass(frozen=True, slots=True)
class Asked:
    """What this worker is to train."""

    model: nn.Module
    batch: Batch
    every: int
    links: Path


def independent(asked: Asked) -> tuple[Step, Step]:
    keep_freed_memory()  # as all of ours do
    return plain_step(asked.model, asked.batch), lambda: None


def dense(asked: Asked) -> tuple[Step, Step]:
    return _ours(asked, "auto")


def local(asked: Asked) -> tuple[Step, Step]:
    return _ours(asked, gradtide.Local(asked.every))


def diloco(asked: Asked) -> tuple[Step, Step]:
    outer: UpdateRule = gradtide.update("sgd", **OUTER)
    return _ours(asked, gradtide.Local(asked.every, outer))


def _ours(asked: Asked, sync: str | gradtide.Local) -> tuple[Step, Step]:
    group, optimizer = Group.from_environment(), torch.optim.SGD(asked.model.parameters(), lr=LR)
    keep_freed_memory()
    if not asked.links.exists():
        group.barrier()  # both have looked
        _probe(asked, optimizer, group)
    wrapped = gradtide.DataParallel(asked.model, optimizer, sync, job=Job.of(group))
    return wrapped_step(wrapped, asked.batch), group.barrier


def _probe(asked: Asked, optimizer: torch.optim.Optimizer, group: Group) -> None:
    """What is predicted from: the links by themselves, a step and when its gradients are ready, and arithmetic."""
    group.explain(probe=True)
    times = [timeline(asked.model, optimizer, asked.batch) for _ in range(5)][2:]
    if group.rank == 0:
        assert group.exchange_model is not None
        parameters = list(asked.model.parameters())
        size = sum(parameter.nbytes for parameter in parameters)
        together_s = predict_step(times, parameters, group.exchange_model, overlap=True)
        sync_s = group.exchange_model.seconds("all_reduce", size)
        found = {
            "bytes": size,
            "meeting_s": sync_s + _arithmetic_s(size),
            "waiting_s": together_s - median(end for _, end in times),
        }
        asked.links.write_text(json.dumps(found))


def _arithmetic_s(size: int) -> float:
    """A meeting's passes over memory, besides the exchange."""
    base, own, change = (torch.ones(size // 4) for _ in range(3))
    took_s = []
    for _ in range(2):
        begin_s = time.perf_counter()
        torch.sub(base, own, out=change)
        change.mul_(2.0)
        change.div_(2.0)
        base.add_(change, alpha=-1.0)
        own.copy_(base)
        took_s.append(time.perf_counter() - begin_s)
    return min(took_s)


def torchft_local(asked: Asked) -> tuple[Step, Step]:
    return rivals.torchft_steps(asked.model, asked.batch, asked.every, None)


def torchft_diloco(asked: Asked) -> tuple[Step, Step]:
    return rivals.torchft_steps(asked.model, asked.batch, asked.every, OUTER)


def accelerate(asked: Asked) -> tuple[Step, Step]:
    return rivals.accelerate_steps(asked.model, asked.batch, asked.every)


KINDS: dict[str, Callable[[Asked], tuple[Step, Step]]] = {
    "independent": independent,
    "dense": dense,
    "local": local,
    "diloco": diloco,
    "torchft-local": torchft_local,
    "torchft-diloco": torchft_diloco,
    "accelerate": accelerate,
}


def main() -> None:
    kind, model, batch_size, every, links, peers = sys.argv[1:]
    if peers:
        sys.path.append(peers)  # at the end: torch and all else stay what they are
    torch.set_num_threads(1)
    asked = Asked(build_model(model, 0), random_batch(int(batch_size)), int(every), Path(links))
    step, barrier = KINDS[kind](asked)
    serve(repeating(step), barrier)


if __name__ == "__main__":
    main()
