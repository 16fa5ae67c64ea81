"""Runs schedules between processes: over the shared memory of a host, over messages between hosts, or both at once."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from gradtide.collective.executors.execute import ProcessWire, run_programme
from gradtide.collective.executors.programme import Programme, far_pairs, write_programme
from gradtide.collective.host.one_host import Call, OneHost
from gradtide.collective.host.reductions import Reduction
from gradtide.collective.host.signature import sign
from gradtide.schedule.model import Schedule
from gradtide.schedule.serialize import schedule_to_json
from gradtide.schedule.verify import verify

__all__ = ["Runner"]

_ALIGN = 64
_REMEMBERED = 64  # schedules


class PushedWire(ProcessWire, Protocol):
    """One that moves nothing by itself, but only while somebody waits for it."""

    def push(self) -> bool:
        """Moves on for a moment; whether all that was sent has left."""


class FarProcesses(Protocol):
    """The way to processes on other hosts."""

    def wire(self, pairs: frozenset[tuple[int, int]], leaving: Mapping[int, int], timeout_s: float) -> PushedWire:
        """For one run. pairs: who sends to whom; leaving: how many messages go from here to each."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    schedule: Schedule
    programme: Programme
    digest: str
    pairs: frozenset[tuple[int, int]]  # of processes on different hosts
    leaving: Mapping[int, int]  # messages from here to each process


class Runner:
    """Knows the schedules that were run before, and the shared memory they need besides the tensors."""

    def __init__(self, host: OneHost, rank: int, host_of: Sequence[int], far: FarProcesses | None = None) -> None:
        """host_of: the number of each rank's host."""
        self._host, self._rank, self._size, self._host_of, self._far = host, rank, len(host_of), host_of, far
        here = [process for process, number in enumerate(host_of) if number == host_of[rank]]
        self._local = {process: at for at, process in enumerate(here)}  # global rank: local rank
        self._prepared: dict[int, _Prepared] = {}
        self._workspace: torch.Tensor | None = None
        self._performed = [0] * self._size

    def prepare(self, schedule: Schedule) -> str:
        """Proves a schedule that is new here, and plans this process's share; returns a digest for signatures."""
        known = self._prepared.get(id(schedule))
        if known is None:
            verify(schedule)
            programme = write_programme(schedule, self._rank, self._size, self._local.__contains__)
            digest = hashlib.blake2b(schedule_to_json(schedule).encode(), digest_size=8).hexdigest()
            if len(self._prepared) >= _REMEMBERED:
                self._prepared.clear()
            leaving = Counter(send.process for send in programme.sends)
            pairs = far_pairs(schedule, self._host_of)
            known = self._prepared[id(schedule)] = _Prepared(schedule, programme, digest, pairs, leaving)
        return known.digest

    def run(self, call: Call, schedule: Schedule, tensor: torch.Tensor, how: Reduction) -> None:
        """Every process gives its whole buffer, contiguous, and finds the result in it."""
        self.prepare(schedule)
        prepared, board = self._prepared[id(schedule)], self._host.board
        programme = prepared.programme
        segment, offset = self._host.segments.find(tensor)
        board.step(call.signature, call.timeout_s, segment, offset)
        offsets = board.shared_by_all()
        buffers = self._buffers(call, schedule, tensor, offsets)
        if offsets is None:
            buffers[self._rank].copy_(tensor.view(-1))
            board.step(call.signature, call.timeout_s)
        if tensor.numel():
            far = self._far
            wire = None if far is None else far.wire(prepared.pairs, prepared.leaving, call.timeout_s)
            run_programme(schedule, programme, buffers, how, _BoardProgress(self, call, wire), wire)
        for process in range(self._size):
            self._performed[process] += programme.performed[process] if tensor.numel() else 0
        board.step(call.signature, call.timeout_s)
        if offsets is None:
            tensor.view(-1).copy_(buffers[self._rank])
        if schedule.collective in ("all_reduce", "reduce", "reduce_scatter"):
            how.finish(tensor, schedule.contributors)

    def _buffers(
        self, call: Call, schedule: Schedule, tensor: torch.Tensor, offsets: list[int] | None
    ) -> dict[int, torch.Tensor]:
        """The buffer of each rank of the schedule on this host. Slot r // size of a process's workspace is rank r's."""
        slot_bytes = -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        slots = -(-len(schedule.ranks) // self._size)
        spaces: list[torch.Tensor] = []
        if slots > 1 or offsets is None:
            space = self._space(call, slots * slot_bytes)
            spaces = (
                self._host.segments.views(space, [0] * self._host.size) if len(space) else [space] * self._host.size
            )
        buffers = {}
        for rank in range(len(schedule.ranks)):
            local = self._local.get(rank % self._size)
            if local is not None and (rank >= self._size or offsets is None):
                begin = rank // self._size * slot_bytes
                here = spaces[local][begin : begin + tensor.numel() * tensor.element_size()]
                buffers[rank] = here.view(tensor.dtype)
        if offsets is not None:
            views = self._host.segments.views(tensor, offsets)
            buffers |= {process: views[local].view(tensor.dtype) for process, local in self._local.items()}
        return buffers

    def _space(self, call: Call, size_bytes: int) -> torch.Tensor:
        """Shared memory that all ranks of the host grow at the same call, since all of them know the sizes."""
        if self._workspace is None or len(self._workspace) < size_bytes:
            self._workspace = None  # let go of the old one first
            signature = sign("workspace of schedules", torch.uint8, (size_bytes,))
            self._workspace = self._host.segments.create(signature, (size_bytes,), torch.uint8, call.timeout_s)
        return self._workspace

    def wait(self, call: Call, process: int, performed: int, wire: PushedWire | None) -> None:
        local, board = self._local[process], self._host.board
        counter, target = board.layout.progress(local), self._performed[process] + performed
        # Who is waited for may wait, by way of other hosts, for what is still to leave from here.
        while wire is not None and not board.reached(counter, target) and not wire.push():
            pass
        board.wait(counter, target, local, call.signature.text, call.timeout_s)

    def post(self, performed: int) -> None:
        board = self._host.board
        board.post(board.layout.progress(board.rank), self._performed[self._rank] + performed)


class _BoardProgress:
    """The progress of the ranks on this host, as counters on their board."""

    def __init__(self, runner: Runner, call: Call, wire: PushedWire | None) -> None:
        self._runner, self._call, self._wire = runner, call, wire

    def wait(self, process: int, performed: int) -> None:
        self._runner.wait(self._call, process, performed, self._wire)

    def post(self, performed: int) -> None:
        self._runner.post(performed)
