"""Messages over torch.distributed's point-to-point operations: Gloo between hosts, NCCL between GPUs."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.executors.execute import Delivery, run_programme
from gradtide.collective.executors.gloo import Gloo
from gradtide.collective.executors.programme import write_programme
from gradtide.collective.host.prepare import as_bytes
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.reductions import reduction
from gradtide.collective.host.waiting import Wait
from gradtide.errors import CommunicationError, ConfigError, PeerLost, PeerTimeout
from gradtide.schedule.model import Schedule
from gradtide.timeouts import default_timeouts

__all__ = ["MessageWire", "TorchWire", "WatchedWire", "execute_over_torch"]


class TorchWire:
    """Sends and receives bytes through a process group; `ranks` are the group's numbers of our processes."""

    def __init__(self, group: Any, timeout_s: float, ranks: Sequence[int] | None = None) -> None:
        self._group, self._timeout_s, self._ranks = group, timeout_s, ranks

    def send(self, data: torch.Tensor, process: int, tag: int) -> Delivery:
        return self._start(self._group.send, data, process, tag, "send to")

    def receive(self, data: torch.Tensor, process: int, tag: int) -> Delivery:
        return self._start(self._group.recv, data, process, tag, "receive from")

    def _start(self, function: Any, data: torch.Tensor, process: int, tag: int, what: str) -> Delivery:
        rank = process if self._ranks is None else self._ranks[process]
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


class WatchedWire(TorchWire):
    """The messages of collectives between hosts: what happens to any rank ends a wait, and says what went wrong."""

    def __init__(self, gloo: Gloo, watch: RankWatch, timeout_s: float, ranks: Sequence[int] | None = None) -> None:
        super().__init__(gloo.group, timeout_s, ranks)
        self._gloo, self._watch = gloo, watch

    def wait(self, work: Any, rank: int) -> None:
        self._gloo.wait(work, self._timeout_s, self._watch.check)
        self._watch.moved()

    def explained(self, error: RuntimeError, rank: int, what: str) -> CommunicationError:
        if is_timeout(str(error)):
            self._watch.may_go_on(f"rank {rank}")  # it may not, after Gloo's timeout; but who is missing is raised
        elif (reason := self._watch.reason()) is not None:
            return reason
        return super().explained(error, rank, what)


class MessageWire(TorchWire):
    """Messages that concern two ranks alone."""

    def __init__(self, gloo: Gloo, watch: RankWatch, timeout_s: float) -> None:
        super().__init__(gloo.group, timeout_s)
        self._gloo, self._watch = gloo, watch

    def wait(self, work: Any, rank: int) -> None:
        wait = Wait("a message to or from it", self._timeout_s, time.monotonic() + self._watch.notice_s)

        def check() -> None:
            self._watch.check_alive(rank)
            if time.monotonic() >= wait.notice_at:
                wait.notice_at = math.inf
                self._watch.tell([rank], wait.what)

        self._gloo.wait(work, self._timeout_s, check)


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
