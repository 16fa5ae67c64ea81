"""What a user writes to train a model of layers in a row on two processes: with torch's pipelines, and with gradtide.

Lines of these two functions are counted and shown beside their speed.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import gradtide

__all__ = ["lines_of", "with_gradtide", "with_torch"]

Step = Callable[[Tensor, Tensor], object]


def with_torch(model: nn.Sequential, cut: int, micro_batches: int, lr: float) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    part = nn.Sequential(*(list(model)[:cut] if rank == 0 else list(model)[cut:]))
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=functional.cross_entropy)
    optimizer = torch.optim.SGD(part.parameters(), lr=lr, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        optimizer.step()

    return step


def with_gradtide(model: nn.Sequential, layout: Any, job: Any, lr: float) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    split = gradtide.ModelParallel(model, optimizer, layout, job=job)

    def step(x: Tensor, y: Tensor) -> object:
        return split.step(x, y, functional.cross_entropy)

    return step


def lines_of(function: Callable[..., Any]) -> int:
    """Of its body, without blank ones."""
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines()[1:])
