"""Runs schedules: on the devices of one process, over shared memory, over messages, or over a mix of these."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch

from gradtide.collective.executors.programme import Programme, ReceiveOp, SendOp, chunk_bounds, performers, waves
from gradtide.collective.host.reductions import Reduction, combine, reduction
from gradtide.errors import ConfigError
from gradtide.schedule.model import Op, Schedule

__all__ = [
    "Delivery",
    "Each",
    "Expected",
    "OpProgress",
    "ProcessWire",
    "apply_op",
    "execute_in_process",
    "run_programme",
]

Each = Callable[[Callable[[int], None]], object]  # runs a function for the index of every device, side by side


class Delivery(Protocol):
    """Something under way."""

    def wait(self) -> None: ...


class Expected(NamedTuple):
    """A message that will come, and where it goes."""

    target: torch.Tensor
    process: int
    tag: int


class ProcessWire(Protocol):
    """Messages to and from processes whose memory this one does not see."""

    def send(self, data: torch.Tensor, process: int, tag: int) -> Delivery: ...

    def expect(self, messages: Sequence[Expected]) -> None:
        """All that will come, in the order in which it is taken. Targets must not be touched before that."""

    def take(self, how: Reduction, kind: str, target: torch.Tensor, process: int) -> None:
        """The next of them, copied or reduced into its target."""


class OpProgress(Protocol):
    """How many ops each process near this one has performed since the schedule began."""

    def wait(self, process: int, performed: int) -> None: ...

    def post(self, performed: int) -> None: ...


def execute_in_process(
    schedule: Schedule, tensors: Sequence[torch.Tensor], op: str = "sum", each: Each | None = None
) -> None:
    """On the devices of one process: tensors[r] is rank r's whole buffer; ranks that only help work on the CPU.

    `each` says how to run work on the devices side by side; without it, ops run in the order of the list.
    """
    if len(tensors) != schedule.contributors:
        raise ConfigError(f"schedule {schedule.name} is for {schedule.contributors} tensors, not {len(tensors)}")
    how, first = reduction(op, tensors[0].dtype), tensors[0]
    for rank, tensor in enumerate(tensors):
        if tensor.shape != first.shape or tensor.dtype != first.dtype or not tensor.is_contiguous():
            raise ConfigError(
                f"tensor {rank} is {tensor.dtype}{list(tensor.shape)}, tensor 0 {first.dtype}{list(first.shape)}; "
                "all must be alike and contiguous"
            )
    buffers = [tensor.detach().view(-1) for tensor in tensors]
    buffers += [torch.empty_like(buffers[0], device="cpu") for _ in schedule.ranks[len(tensors) :]]
    bounds = chunk_bounds(schedule, first.numel())

    def perform(ops: Sequence[Op]) -> None:
        for step in ops:
            begin, end = bounds[step.chunk]
            source, target = buffers[step.src][begin:end], buffers[step.dst][begin:end]
            apply_op(how, step.kind, target, source.to(target.device))

    if each is None:
        perform(schedule.ops)
    else:
        for wave in _shared_out(schedule):
            each(lambda index, wave=wave: perform(wave[index]))  # type: ignore[misc]
    if schedule.collective in ("all_reduce", "reduce_scatter", "reduce"):
        for buffer in buffers[: len(tensors)]:
            how.finish(buffer, schedule.contributors)


@lru_cache(maxsize=64)
def _shared_out(schedule: Schedule) -> list[list[list[Op]]]:
    """Wave by wave, what the thread of each device performs: the ops into its own memory, or a helper's."""
    process_of = performers(schedule, schedule.contributors)
    found = []
    for wave in waves(schedule):
        shares: list[list[Op]] = [[] for _ in range(schedule.contributors)]
        for at in wave:
            shares[process_of[schedule.ops[at].dst]].append(schedule.ops[at])
        found.append(shares)
    return found


def run_programme(
    schedule: Schedule,
    programme: Programme,
    buffers: dict[int, torch.Tensor],
    how: Reduction,
    progress: OpProgress | None = None,
    wire: ProcessWire | None = None,
) -> None:
    """One process's share. buffers: of each rank whose memory this process sees, its whole buffer, flat."""
    run = _Run(schedule, programme, buffers, how, wire)
    for number, receive in enumerate(programme.receives):
        run.send_what_is_ready(number)
        for process, performed in receive.waits:
            assert progress is not None
            progress.wait(process, performed)
        run.perform(receive)
        if progress is not None:
            progress.post(number + 1)
    run.send_what_is_ready(len(programme.receives))
    run.wait_for_sends()


class _Run:
    """The messages under way of one run."""

    def __init__(
        self,
        schedule: Schedule,
        programme: Programme,
        buffers: dict[int, torch.Tensor],
        how: Reduction,
        wire: ProcessWire | None,
    ) -> None:
        self._buffers, self._how, self._wire = buffers, how, wire
        self._bounds = chunk_bounds(schedule, next(iter(buffers.values())).numel())
        self._unsent: dict[int, list[SendOp]] = {}  # by process, in order: some wires keep no tags
        for send in reversed(programme.sends):
            self._unsent.setdefault(send.process, []).append(send)
        self._leaving: dict[int, Delivery] = {}
        if wire is not None:
            far = [receive for receive in programme.receives if not receive.near]
            coming = [Expected(self._chunk(r.op.dst, r.op.chunk), r.process, r.at) for r in far]
            wire.expect([message for message in coming if message.target.numel()])

    def send_what_is_ready(self, performed: int) -> None:
        for queue in self._unsent.values():
            while queue and queue[-1].after <= performed:
                send = queue.pop()
                data = self._chunk(send.op.src, send.op.chunk)
                if self._wire is not None and data.numel():
                    self._leaving[send.at] = self._wire.send(data, send.process, send.at)

    def perform(self, receive: ReceiveOp) -> None:
        op = receive.op
        for at in receive.sends:
            if at in self._leaving:
                self._leaving.pop(at).wait()
        target = self._chunk(op.dst, op.chunk)
        if receive.near:
            apply_op(self._how, op.kind, target, self._chunk(op.src, op.chunk))
        elif target.numel():
            assert self._wire is not None
            self._wire.take(self._how, op.kind, target, receive.process)

    def wait_for_sends(self) -> None:
        for work in self._leaving.values():
            work.wait()

    def _chunk(self, rank: int, chunk: int) -> torch.Tensor:
        begin, end = self._bounds[chunk]
        return self._buffers[rank][begin:end]


def apply_op(how: Reduction, kind: str, target: torch.Tensor, source: torch.Tensor) -> None:
    if kind == "reduce":
        combine(how, target, source)
    else:
        target.copy_(source)
