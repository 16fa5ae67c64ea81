"""Compressed gradients as torch's own DDP has them: its communication hooks, over Gloo and over gradtide."""

from typing import Any

from torch import nn

from gradtide.bench.peers.training import Batch, Step, plain_step
from gradtide.registration import register
from gradtide.testing.hosts import ADDRESSES

__all__ = ["HOOKS", "TorchGroups", "hook_step"]

# Name in the table -> the backend, and the codec that the hook is like
HOOKS = {
    "DDP's fp16 hook, Gloo": ("gloo", "fp16"),
    "DDP's fp16 hook, gradtide": ("gradtide", "fp16"),
    "DDP's PowerSGD hook, gradtide": ("gradtide", "powersgd"),
}


def hook_step(name: str, codec: str, model: nn.Module, batch: Batch, groups: "TorchGroups") -> tuple[Step, int]:
    """A step, and how many come before what is measured."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    backend, hook = HOOKS[name]
    group = groups.of(backend)
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    if hook == "fp16":
        wrapped.register_comm_hook(group, default_hooks.fp16_compress_hook)
        return plain_step(wrapped, batch), 1
    rank = int(codec.partition(":")[2] or 4)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return plain_step(wrapped, batch), 3  # two whole, as it wants it, and the first that is not


class TorchGroups:
    """torch's process groups of both workers, made when they are first asked for."""

    def __init__(self, rank: int, port: int) -> None:
        self._rank, self._port, self._made = rank, port, dict[str, Any]()

    def of(self, backend: str) -> Any:
        import torch.distributed as dist

        if not self._made:
            register()
            address = f"tcp://{ADDRESSES[0]}:{self._port}"
            dist.init_process_group("gloo", init_method=address, rank=self._rank, world_size=2)
            self._made["gloo"] = dist.group.WORLD
        if backend not in self._made:
            self._made[backend] = dist.new_group(backend=backend)
        return self._made[backend]
