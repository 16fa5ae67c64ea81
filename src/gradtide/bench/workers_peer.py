"""One worker of one contender of `bench train --workers`: KIND MODEL BATCH WORKERS MEETING STORE RANK."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradtide
from gradtide.bench.peers import repeating, serve
from gradtide.collective import Group
from gradtide.heap import keep_freed_memory
from gradtide.registration import register
from gradtide.sync import Job, Servers
from gradtide.train.models import build_model

LR = 0.01


@dataclass(frozen=True, slots=True)
class Work:
    """What all contenders do alike."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: tuple[Tensor, Tensor]
    workers: int
    meeting: str
    store: str
    rank: int


Contender = tuple[Callable[[], object], Callable[[], object]]  # one step, and a barrier


def independent(work: Work) -> Contender:
    return _plain(work.model, work), _no_barrier


def independent_kept(work: Work) -> Contender:
    keep_freed_memory()
    return independent(work)


def ddp(work: Work, views: bool = False, backend: str = "gloo") -> Contender:
    import torch.distributed as dist

    register()
    dist.init_process_group(backend, f"file://{work.meeting}", rank=work.rank, world_size=work.workers)
    model = nn.parallel.DistributedDataParallel(work.model, gradient_as_bucket_view=views)
    return _plain(model, work), dist.barrier


def shared(work: Work) -> Contender:
    return _gradtide(work, "auto", None)


def reduce(work: Work) -> Contender:
    return _gradtide(work, "auto", False)


def servers(work: Work) -> Contender:
    return _gradtide(work, Servers("bsp"), None)


def _gradtide(work: Work, sync: str | Servers, share_parameters: bool | None) -> Contender:
    group = Group.join(work.meeting, work.rank, work.workers)
    model = gradtide.DataParallel(
        work.model, work.optimizer, sync, share_parameters=share_parameters, job=Job.of(group, work.store)
    )
    inputs, targets = work.batch

    def step() -> None:
        functional.cross_entropy(model(inputs), targets).backward()
        model.step()

    return step, group.barrier


def _plain(model: nn.Module, work: Work) -> Callable[[], object]:
    inputs, targets = work.batch

    def step() -> None:
        work.optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        work.optimizer.step()

    return step


def _no_barrier() -> None:
    pass


KINDS: dict[str, Callable[[Work], Contender]] = {
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
    generator = torch.Generator().manual_seed(int(rank))
    inputs = torch.rand(int(batch_size), 1, 28, 28, generator=generator)
    targets = torch.randint(10, (int(batch_size),), generator=generator)
    model = build_model(name, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    work = Work(model, optimizer, (inputs, targets), int(workers), meeting, store, int(rank))
    step, barrier = KINDS[kind](work)
    serve(repeating(step), barrier)


if __name__ == "__main__":
    main()
