"""One worker of one contender of `bench train --workers`: KIND MODEL BATCH WORKERS MEETING STORE RANK."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import gradtide
from gradtide.bench.contender import repeating, serve
from gradtide.bench.peers.training import LR, Batch, Step, plain_step, random_batch, wrapped_step
from gradtide.collective import Group
from gradtide.processes.malloc import keep_freed_memory
from gradtide.registration import register
from gradtide.sync import Job, Servers
from gradtide.train.models import build_model


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What all contenders do alike."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Batch
    workers: int
    meeting: str
    store: str
    rank: int


StepAndBarrier = tuple[Step, Step]  # one step, and a barrier


def independent(work: WorkerTask) -> StepAndBarrier:
    return plain_step(work.model, work.batch, work.optimizer), lambda: None


def independent_kept(work: WorkerTask) -> StepAndBarrier:
    keep_freed_memory()
    return independent(work)


def ddp(work: WorkerTask, views: bool = False, backend: str = "gloo") -> StepAndBarrier:
    import torch.distributed as dist

    register()
    dist.init_process_group(backend, f"file://{work.meeting}", rank=work.rank, world_size=work.workers)
    model = nn.parallel.DistributedDataParallel(work.model, gradient_as_bucket_view=views)
    return plain_step(model, work.batch, work.optimizer), dist.barrier


def shared(work: WorkerTask) -> StepAndBarrier:
    return _gradtide(work, "auto", None)


def reduce(work: WorkerTask) -> StepAndBarrier:
    return _gradtide(work, "auto", False)


def servers(work: WorkerTask) -> StepAndBarrier:
    return _gradtide(work, Servers("bsp"), None)


def _gradtide(work: WorkerTask, sync: str | Servers, share_parameters: bool | None) -> StepAndBarrier:
    group = Group.join(work.meeting, work.rank, work.workers)
    model = gradtide.DataParallel(
        work.model, work.optimizer, sync, share_parameters=share_parameters, job=Job.of(group, work.store)
    )
    return wrapped_step(model, work.batch), group.barrier


KINDS: dict[str, Callable[[WorkerTask], StepAndBarrier]] = {
    "independent": independent,
    "independent-kept": independent_kept,
    "ddp": ddp,
    "ddp-views": lambda work: ddp(work, views=True),
    "ddp-gradtide": lambda work: ddp(work, views=True, backend="gradtide"),
    "shared": shared,
    "reduce": reduce,
    "servers": servers,
}


def main() -> None:
    kind, name, batch_size, workers, meeting, store, rank = sys.argv[1:]
    torch.set_num_threads(1)
    batch = random_batch(int(batch_size), int(rank))
    model = build_model(name, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    work = WorkerTask(model, optimizer, batch, int(workers), meeting, store, int(rank))
    step, barrier = KINDS[kind](work)
    serve(repeating(step), barrier)


if __name__ == "__main__":
    main()
