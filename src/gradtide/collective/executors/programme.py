"""From a schedule to what one process has to do: the same for every executor, so that all of them give the same bits.

The process of an op's target performs it: it takes the source's chunk and copies or reduces it into the target's. Ops
on the same chunk of the same rank, one of them writing, must keep the order of the list; nothing else matters. `verify`
has proven that the schedule's own deps say the same, so the order is taken from the list: each process finds all it
needs to wait for among its own sends and the progress of the processes it shares memory with.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gradtide.errors import ScheduleError
from gradtide.schedule.model import Op, Schedule

__all__ = ["Programme", "ReceiveOp", "SendOp", "chunk_bounds", "far_pairs", "performers", "waves", "write_programme"]


@dataclass(frozen=True, slots=True)
class ReceiveOp:
    """An op that this process performs."""

    at: int  # its place in the schedule: the tag of its message
    op: Op
    process: int  # where the source is
    near: bool  # whether this process sees the source's memory
    waits: tuple[tuple[int, int], ...]  # (process, how many ops it must have performed)
    sends: tuple[int, ...]  # places of sends of this process that must have left


@dataclass(frozen=True, slots=True)
class SendOp:
    """An op that another process performs with a message from this one."""

    at: int
    op: Op
    process: int  # where the target is
    after: int  # how many ops this process must have performed before


@dataclass(frozen=True)
class Programme:
    """What one process does for a schedule, in order."""

    receives: tuple[ReceiveOp, ...]
    sends: tuple[SendOp, ...]
    performed: tuple[int, ...]  # by each process in all: what its progress grows by
    helpers: tuple[int, ...] = field(default=())  # ranks beyond the contributors that this process stands in for


def performers(schedule: Schedule, processes: int) -> tuple[int, ...]:
    """Which process stands in for each rank: a contributor for itself, helpers are dealt out."""
    if schedule.contributors != processes:
        raise ScheduleError(
            f"schedule {schedule.name} is for {schedule.contributors} ranks, but {processes} take part; plan for these"
        )
    return tuple(rank % processes for rank in range(len(schedule.ranks)))


def far_pairs(schedule: Schedule, host_of: Sequence[int]) -> frozenset[tuple[int, int]]:
    """The processes of different hosts that send each other messages, the lower one first."""
    process_of = performers(schedule, len(host_of))
    ends = ((process_of[op.src], process_of[op.dst]) for op in schedule.ops)
    return frozenset((min(pair), max(pair)) for pair in ends if host_of[pair[0]] != host_of[pair[1]])


def chunk_bounds(schedule: Schedule, count: int) -> list[tuple[int, int]]:
    """Where each chunk begins and ends in a buffer of `count` elements."""
    total, before, edges = sum(schedule.weights), 0, [0]
    for weight in schedule.weights:
        before += weight
        edges.append(count * before // total)
    return list(pairwise(edges))


def write_programme(schedule: Schedule, me: int, processes: int, near: Callable[[int], bool]) -> Programme:
    """near(process): whether this process sees that one's memory; of itself it does."""
    process_of = performers(schedule, processes)
    performed = [0] * processes
    number = [0] * len(schedule.ops)  # of each op, among those that its process performs
    receives, sends = [], []
    for at, before in _by_level(schedule):
        op = schedule.ops[at]
        home, other = process_of[op.dst], process_of[op.src]
        if home == me:
            waits, left = _waits(schedule, before, process_of, number, me, near)
            receives.append(ReceiveOp(at, op, other, near(other), waits, left))
        elif other == me and not near(home):
            wrote = [number[earlier] + 1 for earlier in before if schedule.ops[earlier].dst == op.src]
            sends.append(SendOp(at, op, home, max(wrote, default=0)))
        number[at] = performed[home]
        performed[home] += 1
    helpers = tuple(r for r in range(schedule.contributors, len(schedule.ranks)) if process_of[r] == me)
    return Programme(tuple(receives), tuple(sends), tuple(performed), helpers)


def waves(schedule: Schedule) -> list[list[int]]:
    """Places of ops that conflict with none of their own wave, only with those of waves before."""
    level, _ = _conflicts(schedule)
    found: list[list[int]] = [[] for _ in range(max(level, default=0))]
    for at, number in enumerate(level):
        found[number - 1].append(at)
    return found


def _by_level(schedule: Schedule) -> list[tuple[int, list[int]]]:
    """Every op's place with those that it must come after, in the order in which processes take them up.

    A process performs its ops one by one. In the list's own order it would finish one chunk before it turns to the
    next, and the wires would wait for it. So first come all ops that wait for nothing, then those that wait for these,
    and so on. What conflicts keeps its order: the bits are the same.
    """
    level, after = _conflicts(schedule)
    return [(at, after[at]) for at in sorted(range(len(level)), key=level.__getitem__)]


def _conflicts(schedule: Schedule) -> tuple[list[int], list[list[int]]]:
    """Of every op: its level, one above all that it must come after, and the places of those."""
    written: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    level: list[int] = []
    after: list[list[int]] = []
    for at, op in enumerate(schedule.ops):
        source, target = (op.src, op.chunk), (op.dst, op.chunk)
        before = [*readers[target], *(written[place] for place in (source, target) if place in written)]
        level.append(1 + max((level[earlier] for earlier in before), default=0))
        after.append(before)
        readers[source].append(at)
        written[target] = at
        readers[target] = []
    return level, after


def _waits(
    schedule: Schedule,
    before: list[int],
    process_of: tuple[int, ...],
    number: list[int],
    me: int,
    near: Callable[[int], bool],
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """What a receive waits for: progress of processes whose memory we share, and our own messages to the others."""
    progress: dict[int, int] = {}
    left = []
    for earlier in before:
        op = schedule.ops[earlier]
        home = process_of[op.dst]
        if near(home):
            if home != me:
                progress[home] = max(progress.get(home, 0), number[earlier] + 1)
        elif process_of[op.src] == me:
            left.append(earlier)
        # Otherwise a far process wrote what a far source sends: its message comes when that is done.
    return tuple(progress.items()), tuple(left)
