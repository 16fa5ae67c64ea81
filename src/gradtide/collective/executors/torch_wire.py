"""Schedules over torch.distributed's point-to-point operations, for who asks for it: Gloo, or NCCL between GPUs."""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.executors.execute import Delivery, Expected, apply_op, run_programme
from gradtide.collective.executors.programme import write_programme
from gradtide.collective.host.prepare import as_bytes
from gradtide.collective.host.reductions import Reduction, reduction
from gradtide.errors import CommunicationError, ConfigError, PeerLost, PeerTimeout
from gradtide.schedule.model import Schedule
from gradtide.timeouts import default_timeouts

__all__ = ["TorchWire", "execute_over_torch"]

# What is asked for before it is needed: all that this many bytes hold, and so many messages anyway. Gloo sends nothing
# before it hears that the receiver is ready, and that word would queue behind all that goes the other way.
_AHEAD, _AHEAD_BYTES = 4, 64 << 20


class TorchWire:
    """Sends and receives bytes through a process group."""

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._group, self._timeout_s = group, timeout_s
        self._coming: deque[Expected] = deque()
        self._arriving: deque[tuple[Delivery, torch.Tensor]] = deque()
        self._asked_bytes = 0

    def send(self, data: torch.Tensor, process: int, tag: int) -> Delivery:
        return self._start(self._group.send, data, process, tag, "send to")

    def expect(self, messages: Sequence[Expected]) -> None:
        self._coming.extend(messages)
        self._ask_ahead()

    def take(self, how: Reduction, kind: str, target: torch.Tensor, process: int) -> None:
        self._ask_ahead()
        work, data = self._arriving.popleft()
        self._asked_bytes -= data.nbytes
        work.wait()
        apply_op(how, kind, target, data)

    def _ask_ahead(self) -> None:
        while self._coming and (len(self._arriving) < _AHEAD or self._asked_bytes < _AHEAD_BYTES):
            target, process, tag = self._coming.popleft()
            room = torch.empty_like(target)
            self._arriving.append((self._start(self._group.recv, room, process, tag, "receive from"), room))
            self._asked_bytes += room.nbytes

    def _start(self, function: Any, data: torch.Tensor, rank: int, tag: int, what: str) -> Delivery:
        try:
            work = function([as_bytes(data)], rank, tag)
        except RuntimeError as error:
            raise self.explained(error, rank, what) from None
        return _TorchWork(self, work, rank, what)

    def wait(self, work: Any, rank: int) -> None:
        work.wait(timedelta(seconds=self._timeout_s))

    def explained(self, error: RuntimeError, rank: int, what: str) -> CommunicationError:
        line = (str(error).splitlines() or [""])[0]
        if is_timeout(line):
            return PeerTimeout(
                f"rank {rank} did not answer within {self._timeout_s:g} s ({what} rank {rank}); is it stuck?"
            )
        return PeerLost(f"rank {rank} is gone ({what} rank {rank}: {line[:200]}); see its own output for why")


class _TorchWork:
    """One message under way."""

    def __init__(self, wire: TorchWire, work: Any, rank: int, what: str) -> None:
        self._wire, self._work, self._rank, self._what = wire, work, rank, what

    def wait(self) -> None:
        try:
            self._wire.wait(self._work, self._rank)
        except RuntimeError as error:
            raise self._wire.explained(error, self._rank, self._what) from None


def is_timeout(line: str) -> bool:
    return "imed out waiting" in line


def execute_over_torch(
    schedule: Schedule, tensor: torch.Tensor, op: str = "sum", *, group: Any = None, timeout_s: float | None = None
) -> None:
    """Runs a schedule between the ranks of a torch.distributed group (the world by default), with messages alone."""
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ConfigError("torch.distributed has no process group yet; call init_process_group first")
    if not tensor.is_contiguous():
        raise ConfigError("a schedule runs on contiguous tensors; pass tensor.contiguous()")
    limit_s = default_timeouts().step_s if timeout_s is None else timeout_s
    how, rank = reduction(op, tensor.dtype), group.rank()
    programme = write_programme(schedule, rank, group.size(), lambda process: process == rank)
    flat = tensor.detach().view(-1)
    buffers = {rank: flat} | {helper: torch.empty_like(flat) for helper in programme.helpers}
    run_programme(schedule, programme, buffers, how, None, TorchWire(group, limit_s))
    if schedule.collective in ("all_reduce", "reduce", "reduce_scatter"):
        how.finish(flat, schedule.contributors)
