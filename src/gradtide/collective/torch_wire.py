"""Messages over torch.distributed's point-to-point operations: Gloo between hosts, NCCL between GPUs."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.execute import Work, run_programme
from gradtide.collective.programme import write_programme
from gradtide.collective.reductions import reduction
from gradtide.errors import ConfigError, PeerLost, PeerTimeout
from gradtide.schedule.model import Schedule

__all__ = ["TorchWire", "execute_over_torch", "open_gloo"]


class TorchWire:
    """Sends and receives bytes through a process group; `ranks` are the group's numbers of our processes."""

    def __init__(self, group: Any, timeout_s: float, ranks: Sequence[int] | None = None) -> None:
        self.group, self._timeout_s, self._ranks = group, timeout_s, ranks

    def send(self, data: torch.Tensor, process: int, tag: int) -> Work:
        return self._start(self.group.send, data, process, tag, "send to")

    def receive(self, data: torch.Tensor, process: int, tag: int) -> Work:
        return self._start(self.group.recv, data, process, tag, "receive from")

    def with_timeout(self, timeout_s: float) -> "TorchWire":
        return TorchWire(self.group, timeout_s, self._ranks)

    def _start(self, function: Any, data: torch.Tensor, process: int, tag: int, what: str) -> Work:
        rank = process if self._ranks is None else self._ranks[process]
        try:
            work = function([data.view(-1).view(torch.uint8)], rank, tag)
        except RuntimeError as error:
            raise _explained(error, rank, what, self._timeout_s) from None
        return _TorchWork(work, rank, what, self._timeout_s)


class _TorchWork:
    """One message under way."""

    def __init__(self, work: Any, rank: int, what: str, timeout_s: float) -> None:
        self._work, self._rank, self._what, self._timeout_s = work, rank, what, timeout_s

    def wait(self) -> None:
        try:
            self._work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise _explained(error, self._rank, self._what, self._timeout_s) from None


def _explained(error: RuntimeError, rank: int, what: str, timeout_s: float) -> PeerLost | PeerTimeout:
    lines = str(error).splitlines() or [""]
    if "imed out" in lines[0] or "imeout" in lines[0]:
        return PeerTimeout(f"rank {rank} did not answer within {timeout_s:g} s ({what} rank {rank}); is it stuck?")
    return PeerLost(f"rank {rank} is gone ({what} rank {rank}: {lines[0][:200]}); see its own output for why")


def execute_over_torch(
    schedule: Schedule, tensor: torch.Tensor, op: str = "sum", *, group: Any = None, timeout_s: float = 60.0
) -> None:
    """Runs a schedule between the ranks of a torch.distributed group (the world by default), with messages alone."""
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ConfigError("torch.distributed has no process group yet; call init_process_group first")
    if not tensor.is_contiguous():
        raise ConfigError("a schedule runs on contiguous tensors; pass tensor.contiguous()")
    how, rank = reduction(op, tensor.dtype), group.rank()
    programme = write_programme(schedule, rank, group.size(), lambda process: process == rank)
    flat = tensor.detach().view(-1)
    buffers = {rank: flat} | {helper: torch.empty_like(flat) for helper in programme.helpers}
    run_programme(schedule, programme, buffers, how, None, TorchWire(group, timeout_s))
    if schedule.collective in ("all_reduce", "reduce", "reduce_scatter"):
        how.finish(flat, schedule.contributors)


def open_gloo(store: Any, rank: int, size: int, address: str | None, timeout_s: float) -> Any:
    """A Gloo process group on this local address, which torch.distributed's global state knows nothing of."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [gloo.create_device(hostname=address) if address else gloo.create_default_device()]
    return gloo(store, rank, size, options)
