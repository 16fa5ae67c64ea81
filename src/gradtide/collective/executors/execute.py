"""Runs schedules: on the devices of one process, over shared memory, over messages, or over a mix of these."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import torch

from gradtide.collective.executors.programme import Programme, ReceiveOp, SendOp, chunk_bounds, performers, waves
from gradtide.collective.host.reductions import Reduction, combine, reduction
from gradtide.errors import ConfigError
from gradtide.schedule.model import Op, Schedule

__all__ = ["Delivery", "Each", "OpProgress", "ProcessWire", "execute_in_process", "run_programme"]

Each = Callable[[Callable[[int], None]], object]  # runs a function for the index of every device, side by side

# What is asked for before it is needed: all that this many bytes hold, and so many messages anyway. Gloo sends nothing
# before it hears that the receiver is ready, and that word would queue behind all that goes the other way.
_AHEAD, _AHEAD_BYTES = 4, 64 << 20


class Delivery(Protocol):
    """Something under way."""

    def wait(self) -> None: ...


class ProcessWire(Protocol):
    """Messages to and from processes whose memory this one does not see."""

    def send(self, data: torch.Tensor, process: int, tag: int) -> Delivery: ...

    def receive(self, data: torch.Tensor, process: int, tag: int) -> Delivery: ...


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
            _apply(how, step.kind, target, source.to(target.device))

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
    run.ask_ahead()
    for number, receive in enumerate(programme.receives):
        run.send_what_is_ready(number)
        for process, performed in receive.waits:
            assert progress is not None
            progress.wait(process, performed)
        run.perform(number, receive)
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
        self._far = [(n, receive) for n, receive in enumerate(programme.receives) if not receive.near]
        self._far.reverse()
        self._arriving: dict[int, tuple[Delivery | None, torch.Tensor]] = {}
        self._asked_bytes = 0

    def send_what_is_ready(self, performed: int) -> None:
        for queue in self._unsent.values():
            while queue and queue[-1].after <= performed:
                send = queue.pop()
                data = self._chunk(send.op.src, send.op.chunk)
                if self._wire is not None and data.numel():
                    self._leaving[send.at] = self._wire.send(data, send.process, send.at)

    def perform(self, number: int, receive: ReceiveOp) -> None:
        op = receive.op
        for at in receive.sends:
            if at in self._leaving:
                self._leaving.pop(at).wait()
        source = self._chunk(op.src, op.chunk) if receive.near else self._arrived(number)
        _apply(self._how, op.kind, self._chunk(op.dst, op.chunk), source)

    def wait_for_sends(self) -> None:
        for work in self._leaving.values():
            work.wait()

    def ask_ahead(self) -> None:
        while self._far and (len(self._arriving) < _AHEAD or self._asked_bytes < _AHEAD_BYTES):
            later, receive = self._far.pop()
            room = torch.empty_like(self._chunk(receive.op.dst, receive.op.chunk))
            assert self._wire is not None
            work = self._wire.receive(room, receive.process, receive.at) if room.numel() else None
            self._arriving[later] = work, room
            self._asked_bytes += room.nbytes

    def _arrived(self, number: int) -> torch.Tensor:
        self.ask_ahead()
        work, data = self._arriving.pop(number)
        self._asked_bytes -= data.nbytes
        if work is not None:
            work.wait()
        return data

    def _chunk(self, rank: int, chunk: int) -> torch.Tensor:
        begin, end = self._bounds[chunk]
        return self._buffers[rank][begin:end]


def _apply(how: Reduction, kind: str, target: torch.Tensor, source: torch.Tensor) -> None:
    if kind == "reduce":
        combine(how, target, source)
    else:
        target.copy_(source)
