"""Proves that a schedule gives the right result on every executor, in every order that its deps allow.

Three steps, each of which makes the next one cheap:

1. Shape: ranks, chunks and deps exist, and every dep comes earlier in the list. So the list itself is an order
   that the deps allow, and nothing can deadlock: let each rank issue the ops of a channel in list order, with one
   slot per lane (channel, source, target). The first unfinished op of the list never waits for a later one: its
   deps, its lane and both of its ranks hold only earlier ops, which are done. So it ends, and so do all.
2. Order: two ops that touch the same chunk of the same rank, one of them writing, are ordered through deps. So
   every allowed order gives the same result as the list.
3. Contributions: replay the list with a set of contributors per rank and chunk instead of numbers.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gradtide.errors import ScheduleError
from gradtide.schedule.model import Op, Schedule

__all__ = ["Proof", "verify"]

BLOCK = 8192  # ancestors looked at in one pass: 1 KiB per op, whatever the schedule's length


@dataclass(frozen=True, slots=True)
class Proof:
    """What came out besides "it is right"."""

    steps: int  # ops on the longest chain of deps
    scratch: tuple[float, ...]  # per rank, the memory it needs besides its buffer, as a share of the buffer

    def scratch_bytes(self, size_bytes: int) -> tuple[int, ...]:
        return tuple(round(share * size_bytes) for share in self.scratch)


def verify(schedule: Schedule) -> Proof:
    """Raises ScheduleError, naming op, rank and chunk, unless the schedule is right."""
    _check_frame(schedule)
    deps = _check_ops(schedule)
    _check_order(schedule, deps)
    _check_contributions(schedule)
    return Proof(_longest_chain(deps), _scratch(schedule))


def _check_frame(schedule: Schedule) -> None:
    name, ranks = schedule.name, len(schedule.ranks)
    if not 1 <= schedule.contributors <= ranks or len(set(schedule.ranks)) != ranks:
        raise ScheduleError(f"{name}: needs different ranks, of which 1 to {ranks} contribute")
    if not schedule.weights or min(schedule.weights) < 1:
        raise ScheduleError(f"{name}: needs one chunk or more, each of weight 1 or more")
    if schedule.collective == "all_reduce":
        if schedule.owners:
            raise ScheduleError(f"{name}: all_reduce has no owners, but {len(schedule.owners)} are given")
        return
    if len(schedule.owners) != len(schedule.weights):
        raise ScheduleError(f"{name}: has {len(schedule.weights)} chunks but {len(schedule.owners)} owners")
    for chunk, owner in enumerate(schedule.owners):
        if not 0 <= owner < schedule.contributors:
            raise ScheduleError(f"{name}: chunk {chunk} is owned by rank {owner}, which contributes nothing")
    if schedule.collective in ("broadcast", "reduce") and len(set(schedule.owners)) > 1:
        raise ScheduleError(f"{name}: {schedule.collective} has one root, but chunks have different owners")


def _check_ops(schedule: Schedule) -> list[tuple[int, ...]]:
    """The deps of each op as places in the list, all of them earlier ones."""
    place = {op.id: at for at, op in enumerate(schedule.ops)}
    if len(place) != len(schedule.ops):
        twice = next(op.id for at, op in enumerate(schedule.ops) if place[op.id] != at)
        raise ScheduleError(f"{schedule.name}: two ops have the id {twice}")
    ranks, chunks, deps = len(schedule.ranks), len(schedule.weights), []
    for at, op in enumerate(schedule.ops):
        if not (0 <= op.src < ranks and 0 <= op.dst < ranks and 0 <= op.chunk < chunks and op.channel >= 0):
            raise ScheduleError(f"{_who(schedule, op)}: has {ranks} ranks and {chunks} chunks; no such place")
        if op.src == op.dst or op.kind not in ("copy", "reduce"):
            raise ScheduleError(f"{_who(schedule, op)}: must copy or reduce between two different ranks")
        for dep in op.deps:
            if dep not in place:
                raise ScheduleError(f"{_who(schedule, op)}: depends on op {dep}, which does not exist")
            if place[dep] >= at:
                raise ScheduleError(_backwards(schedule, op, dep))
        deps.append(tuple(place[dep] for dep in op.deps))
    return deps


def _backwards(schedule: Schedule, op: Op, dep: int) -> str:
    cycle = _cycle(schedule)
    if cycle:
        chain = " -> ".join(map(str, cycle))
        return f"{_who(schedule, op)}: its deps go in a circle, {chain}: it can never start"
    return f"{_who(schedule, op)}: depends on op {dep}, which comes later in the list; move op {dep} before it"


def _cycle(schedule: Schedule) -> list[int]:
    """The ids of ops that wait for each other, first one repeated, or nothing."""
    deps = {op.id: op.deps for op in schedule.ops}
    done: set[int] = set()
    for start in deps:
        path: list[int] = []
        open_ids: set[int] = set()
        stack = [(start, False)]
        while stack:
            at, leaving = stack.pop()
            if leaving:
                open_ids.discard(path.pop())
                done.add(at)
            elif at in open_ids:
                return [*path[path.index(at) :], at]
            elif at not in done:
                path.append(at)
                open_ids.add(at)
                stack.append((at, True))
                stack.extend((dep, False) for dep in deps.get(at, ()))
    return []


def _check_order(schedule: Schedule, deps: list[tuple[int, ...]]) -> None:
    """Each write waits for every read and write before it of that place, each read for the write before it."""
    written: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    indirect: list[tuple[int, int, tuple[int, int]]] = []  # (earlier, later, place): not in the op's own deps
    for at, op in enumerate(schedule.ops):
        source, target = (op.src, op.chunk), (op.dst, op.chunk)
        if source in written and written[source] not in deps[at]:
            indirect.append((written[source], at, source))
        # A reader of the target already waits for the target's writer, so waiting for the readers is enough.
        before = readers[target] or ([written[target]] if target in written else [])
        indirect.extend((earlier, at, target) for earlier in before if earlier not in deps[at])
        readers[source].append(at)
        written[target] = at
        readers[target] = []
    for earlier, later, (rank, chunk) in _unordered(indirect, deps):
        first = schedule.ops[earlier]
        raise ScheduleError(
            f"{_who(schedule, schedule.ops[later])}: touches chunk {chunk} of rank {rank} as op {first.id} does, "
            f"but no dep says which comes first; add {first.id} to its deps"
        )


def _unordered(
    pairs: list[tuple[int, int, tuple[int, int]]], deps: list[tuple[int, ...]]
) -> Iterable[tuple[int, int, tuple[int, int]]]:
    """Those pairs whose earlier op is no ancestor of the later one. Bit i of a mask stands for op low + i."""
    blocks: dict[int, list[tuple[int, int, tuple[int, int]]]] = defaultdict(list)
    for pair in pairs:
        blocks[pair[0] // BLOCK].append(pair)
    for block, members in blocks.items():
        low, last = block * BLOCK, max(later for _, later, _ in members)
        masks: list[int] = []
        for at in range(low, last + 1):
            mask = 1 << (at - low) if at < low + BLOCK else 0
            for dep in deps[at]:
                if dep >= low:
                    mask |= masks[dep - low]
            masks.append(mask)
        yield from (pair for pair in members if not masks[pair[1] - low] >> (pair[0] - low) & 1)


def _check_contributions(schedule: Schedule) -> None:
    """Replays the list with a bit per contributor for each rank and chunk; 0 is memory that nobody has written."""
    held = _inputs(schedule)
    for op in schedule.ops:
        sent, there = held.get((op.src, op.chunk), 0), held.get((op.dst, op.chunk), 0)
        if not sent:
            raise ScheduleError(f"{_who(schedule, op)}: rank {op.src} holds nothing yet in chunk {op.chunk}")
        if op.kind == "reduce":
            if not there:
                raise ScheduleError(f"{_who(schedule, op)}: rank {op.dst} holds nothing to add to; copy first")
            if sent & there:
                twice = _lowest(sent & there)
                raise ScheduleError(f"{_who(schedule, op)}: rank {op.dst} would count rank {twice} twice")
        held[op.dst, op.chunk] = sent | there if op.kind == "reduce" else sent
    for rank, chunk, wanted in _outputs(schedule):
        got = held.get((rank, chunk), 0)
        if got != wanted:
            last = max((op.id for op in schedule.ops if (op.dst, op.chunk) == (rank, chunk)), default=None)
            after = "which no op writes" if last is None else f"last written by op {last}"
            fault = f"lacks rank {_lowest(wanted & ~got)}" if wanted & ~got else f"has rank {_lowest(got & ~wanted)}"
            raise ScheduleError(f"{schedule.name}: at the end rank {rank} {fault} in chunk {chunk}, {after}")


def _inputs(schedule: Schedule) -> dict[tuple[int, int], int]:
    if schedule.collective in ("all_gather", "broadcast"):
        return {(owner, chunk): 1 << owner for chunk, owner in enumerate(schedule.owners)}
    chunks = range(len(schedule.weights))
    return {(rank, chunk): 1 << rank for rank in range(schedule.contributors) for chunk in chunks}


def _outputs(schedule: Schedule) -> Iterable[tuple[int, int, int]]:
    """(rank, chunk, set of contributors) that must be there at the end."""
    everyone = (1 << schedule.contributors) - 1
    for chunk in range(len(schedule.weights)):
        if schedule.collective in ("reduce_scatter", "reduce"):
            yield schedule.owners[chunk], chunk, everyone
            continue
        wanted = everyone if schedule.collective == "all_reduce" else 1 << schedule.owners[chunk]
        yield from ((rank, chunk, wanted) for rank in range(schedule.contributors))


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _longest_chain(deps: list[tuple[int, ...]]) -> int:
    length: list[int] = []
    for before in deps:
        length.append(1 + max((length[dep] for dep in before), default=0))
    return max(length, default=0)


def _scratch(schedule: Schedule) -> tuple[float, ...]:
    """A reduce arrives in a slot of its lane before it is added; a helper also needs room for what it aggregates."""
    slots: dict[tuple[int, int, int], int] = defaultdict(int)
    helped: set[tuple[int, int]] = set()
    for op in schedule.ops:
        if op.kind == "reduce":
            lane = (op.dst, op.src, op.channel)
            slots[lane] = max(slots[lane], schedule.weights[op.chunk])
        if op.dst >= schedule.contributors:
            helped.add((op.dst, op.chunk))
    weights = [0] * len(schedule.ranks)
    for (rank, _, _), weight in slots.items():
        weights[rank] += weight
    for rank, chunk in helped:
        weights[rank] += schedule.weights[chunk]
    total = sum(schedule.weights)
    return tuple(weight / total for weight in weights)


def _who(schedule: Schedule, op: Op) -> str:
    return f"{schedule.name}: op {op.id} ({op.kind} of chunk {op.chunk} from rank {op.src} to rank {op.dst})"
