"""A group whose tensors lie on an accelerator: torch.distributed's own group for the device (NCCL, or Gloo on a CPU).

It stands beside a `Group`, by which its ranks find each other. It has run over Gloo only: no GPU was at hand.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradtide.collective.groups.group import Group
from gradtide.environment import read_environment
from gradtide.errors import CommunicationError, ConfigError

__all__ = ["DeviceGroup"]

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class DeviceGroup:
    """What a way needs of a group, in a device's own memory. What lies elsewhere is moved there and back."""

    on_one_host = False

    def __init__(self, group: Group, device: torch.device) -> None:
        self.rank, self.size, self.device, self.timeout_s = group.rank, group.size, device, group.timeout_s
        if read_environment().encrypt and not group.on_one_host:
            raise ConfigError(f"parameters are on {device}, whose collectives can't be encrypted; use the CPU")
        self._store = _meet(group)
        limit = timedelta(seconds=group.timeout_s)
        if device.type == "cuda":
            kind: Any = getattr(dist, "ProcessGroupNCCL", None)
            if kind is None:
                raise ConfigError("parameters are on cuda, but this torch has no NCCL; move the model to the CPU")
            options = kind.Options()
            options._timeout = limit
            self._group = kind(self._store, self.rank, self.size, options)
        elif device.type == "cpu":
            gloo: Any = dist.ProcessGroupGloo
            self._group = gloo(self._store, self.rank, self.size, limit)
        else:
            raise ConfigError(f"parameters are on {device}; gradtide trains on cpu and cuda")

    def all_reduce(self, tensor: Tensor, op: str = "sum", *, strategy: object = None, async_op: bool = False) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[op]  # type: ignore[assignment]
        return self._done(tensor, lambda there: self._group.allreduce([there], options), async_op)

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._done(tensor, lambda there: self._group.broadcast([there], options), False)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        there = tensor.detach().to(self.device).contiguous()
        rows = [torch.empty_like(there) for _ in range(self.size)]
        _wait(self._group.allgather([rows], [there]), "all_gather")
        return torch.stack(rows).to(tensor.device)

    def shared_tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=dtype, device=self.device)

    def schedule(self, strategy: object, size_bytes: int) -> None:
        """torch.distributed chooses by itself."""

    def _done(self, tensor: Tensor, start: Any, async_op: bool) -> Any:
        memory = tensor.detach()
        there = memory.to(self.device).contiguous()
        work = start(there)
        back = there.data_ptr() != memory.data_ptr() or there.device != memory.device
        handle = _Work(work, lambda: memory.copy_(there) if back else memory)
        if async_op:
            return handle
        handle.wait()
        return tensor


class _Work:
    """A handle of torch.distributed's, and what is left to do when it is done."""

    def __init__(self, work: Any, finish: Any) -> None:
        self._work, self._finish = work, finish

    def wait(self) -> None:
        _wait(self._work, "a collective on the device")
        self._finish()


def _wait(work: Any, what: str) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise CommunicationError(
            f"{what} failed: {str(error).splitlines()[0]}; see the other workers' output"
        ) from None


def _meet(group: Group) -> Any:
    """A store of torch's that rank 0 holds, at an address that it tells the others."""
    kind: Any = vars(dist)["TCPStore"]
    limit, place, store = timedelta(seconds=group.timeout_s), torch.zeros(256, dtype=torch.uint8), None
    if group.rank == 0:
        host = "127.0.0.1" if group.on_one_host else group.address()
        store = kind(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
        said = f"{host}:{store.port}".encode()
        place[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    group.broadcast(place)
    if store is None:
        host, _, port = bytes(place.tolist()).rstrip(b"\0").decode().rpartition(":")
        store = kind(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    return store
