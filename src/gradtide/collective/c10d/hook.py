"""The communication hook for DDP over any other process group: model.register_comm_hook(Group.beside(), ddp_hook)."""

from typing import Any

import torch
from torch.futures import Future

from gradtide.collective.c10d.work import Work
from gradtide.collective.group import Group
from gradtide.errors import ConfigError

__all__ = ["ddp_hook"]


def ddp_hook(state: Group, bucket: Any) -> "Future[torch.Tensor]":
    """The mean of a bucket of gradients over the ranks of a gradtide group, which are those of DDP's process group."""
    if not isinstance(state, Group):
        raise ConfigError(
            "ddp_hook needs a gradtide group of the same ranks: model.register_comm_hook(Group.beside(), ddp_hook)"
        )
    buffer = bucket.buffer()
    work = Work(state.all_reduce(buffer, "mean", async_op=True), [buffer])
    return work.get_future().then(lambda future: future.value()[0])
