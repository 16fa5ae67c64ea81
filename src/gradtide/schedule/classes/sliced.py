"""A schedule of many slices that are alike: one slice of each stream, and the order in which slices come."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradtide.errors import ScheduleError
from gradtide.schedule.classes.generated import MOST_LISTED
from gradtide.schedule.model import Collective, Op, Schedule
from gradtide.schedule.predict.op_arrays import OpArrays, arrays_of
from gradtide.schedule.verify import Proof, verify

__all__ = ["SlicedSchedule", "prove_slices"]


@dataclass(frozen=True)
class SlicedSchedule:
    """Slices of one stream do the same with other chunks. Streams have channels of their own: none waits for another.

    Slice after slice, a slice's ops have the ids and chunks that follow those of the slice before.
    """

    streams: tuple[Schedule, ...]  # one slice each
    order: tuple[tuple[int, int], ...]  # of each slice: its stream, and how many times that one's weights it has

    @property
    def name(self) -> str:
        return self.streams[0].name

    @property
    def collective(self) -> Collective:
        return self.streams[0].collective

    @property
    def ranks(self) -> tuple[str, ...]:
        return self.streams[0].ranks

    @property
    def contributors(self) -> int:
        return self.streams[0].contributors

    @property
    def op_count(self) -> int:
        return sum(len(self.streams[stream].ops) for stream, _ in self.order)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        return tuple(size * weight for stream, size in self.order for weight in self.streams[stream].weights)

    def arrays(self) -> OpArrays:
        """All ops, as arrays."""
        streams = [arrays_of(stream) for stream in self.streams]
        chunks = [len(stream.weights) for stream in self.streams]
        parts = [streams[stream] for stream, _ in self.order]
        first_op = np.cumsum([0, *(len(part) for part in parts)])
        first_chunk = np.cumsum([0, *(chunks[stream] for stream, _ in self.order)])
        return OpArrays(
            ranks=self.ranks,
            src=np.concatenate([part.src for part in parts]),
            dst=np.concatenate([part.dst for part in parts]),
            chunk=np.concatenate([part.chunk + first for part, first in zip(parts, first_chunk, strict=False)]),
            channel=np.concatenate([part.channel for part in parts]),
            dep_counts=np.concatenate([part.dep_counts for part in parts]),
            deps=np.concatenate([part.deps + first for part, first in zip(parts, first_op, strict=False)]),
        )

    def ops_of(self, rank: int) -> Iterator[Op]:
        """The ops that this rank sends or receives, in the order of the list."""
        ours = [[op for op in stream.ops if rank in (op.src, op.dst)] for stream in self.streams]
        return self._shifted(ours)

    def listed(self) -> Schedule:
        """The whole as one list."""
        if self.op_count > MOST_LISTED:
            raise ScheduleError(
                f"{self.name}: {self.op_count:,} ops are too many for one list; ask ops_of(rank), a rank at a time"
            )
        ops = tuple(self._shifted([list(stream.ops) for stream in self.streams]))
        return Schedule(self.name, self.collective, self.ranks, self.contributors, self.weights, ops)

    def _shifted(self, ops: list[list[Op]]) -> Iterator[Op]:
        """These ops of each stream, in every slice of it."""
        first = first_chunk = 0
        for stream, _ in self.order:
            for number, src, dst, chunk, kind, deps, channel in ops[stream]:
                waits = tuple([dep + first for dep in deps])
                yield Op(number + first, src, dst, chunk + first_chunk, kind, waits, channel)
            first += len(self.streams[stream].ops)
            first_chunk += len(self.streams[stream].weights)


def prove_slices(schedule: SlicedSchedule) -> Proof:
    """Raises ScheduleError unless the schedule is right.

    Each stream's slice is proven by itself. Chunks of different slices never meet in an op or a dep, and ids of a slice
    are 0, 1, …, so a slice that follows others is the same one, renumbered, and its deps come earlier in the list.
    """
    used = {stream for stream, _ in schedule.order}
    if not schedule.order or used != set(range(len(schedule.streams))) or min(size for _, size in schedule.order) < 1:
        raise ScheduleError(f"{schedule.name}: every stream needs a slice or more, each of size 1 or more")
    for stream in schedule.streams:
        if [op.id for op in stream.ops] != list(range(len(stream.ops))):
            raise ScheduleError(f"{stream.name}: ops of a slice must have the ids 0, 1, … in the order of its list")
        if (stream.ranks, stream.collective) != (schedule.ranks, "all_reduce"):
            raise ScheduleError(f"{stream.name}: streams must all be an all_reduce of the same ranks")
        if stream.contributors != len(stream.ranks):
            raise ScheduleError(f"{stream.name}: every rank of a stream must contribute; slices know no helpers")
    proofs = [verify(stream) for stream in schedule.streams]
    return Proof(max(proof.steps for proof in proofs), _scratch(schedule))


def _scratch(schedule: SlicedSchedule) -> tuple[float, ...]:
    """What verify finds for the whole list: a slot of each lane that a rank receives what it adds up by."""
    largest = [max(size for at, size in schedule.order if at == stream) for stream in range(len(schedule.streams))]
    slots: dict[tuple[int, int, int], int] = defaultdict(int)
    for stream, size in zip(schedule.streams, largest, strict=True):
        for op in stream.ops:
            if op.kind == "reduce":
                lane = (op.dst, op.src, op.channel)
                slots[lane] = max(slots[lane], size * stream.weights[op.chunk])
    held = [0] * len(schedule.ranks)
    for (rank, _, _), weight in slots.items():
        held[rank] += weight
    return tuple(weight / sum(schedule.weights) for weight in held)
