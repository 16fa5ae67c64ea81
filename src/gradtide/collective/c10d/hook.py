"""The communication hook for DDP over any other process group: model.register_comm_hook(Group.beside(), ddp_hook)."""

import torch
import torch.distributed as dist
from torch.futures import Future

from gradtide.collective.c10d.work import Work
from gradtide.collective.groups.group import Group
from gradtide.errors import ConfigError

__all__ = ["ddp_hook"]


# DDP reads these annotations.
def ddp_hook(state: Group, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
    """A communication hook for DDP: `model.register_comm_hook(gradtide.Group.beside(), gradtide.ddp_hook)`.

    The result is the mean of a bucket of gradients over the ranks of that group, which are those of DDP's process
    group. Raises ConfigError if `state` is no gradtide group.
    """
    if not isinstance(state, Group):
        raise ConfigError(
            "ddp_hook needs a gradtide group of the same ranks: model.register_comm_hook(Group.beside(), ddp_hook)"
        )
    buffer = bucket.buffer()
    work = Work(state, state.all_reduce(buffer, "mean", async_op=True), [buffer])
    return work.get_future().then(lambda future: future.value()[0])
