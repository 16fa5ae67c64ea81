"""Proves a generated schedule: its seed once, and that the whole is really the seed, turned.

verify proves the seed: order, deadlocks, contributions of the chunks that rank 0 owns. Chunks of different owners never
meet in an op or a dep, so if every owner's ops are the seed's with ranks relabelled one to one, the whole is right.
That they are is checked for every turn by one place along an axis, since those make all turns: it takes each op to the
same op of another owner's chunk. And what ops_of says of a rank has to be what it says of rank 0, turned. All
contributions are replayed as well. Up to WHOLE ranks that is done for every owner; above, for owners drawn at random,
in full for each. Ranks are asked for their ops one and all where there are few ops, else those that were drawn.
"""

import numpy as np
from numpy.typing import NDArray

from gradtide.errors import ScheduleError
from gradtide.schedule.classes.generated import GeneratedSchedule
from gradtide.schedule.classes.relabelling import check_ops, units
from gradtide.schedule.verify import Proof, verify

__all__ = ["WHOLE", "check_turned", "prove", "replay"]

Ints = NDArray[np.intp]

WHOLE = 256  # ranks up to which every owner's chunks are replayed
DRAWN = 2  # ranks, and owners, drawn at random above that
FEW_OPS = 20_000  # of which every rank is asked: a tenth of a second


def prove(schedule: GeneratedSchedule, chance: int = 0) -> Proof:
    """Raises ScheduleError unless the schedule is right; `chance` is the seed of what is drawn."""
    count = schedule.turns.count
    if len(schedule.ranks) != count or schedule.contributors != count:
        raise ScheduleError(f"{schedule.name}: {len(schedule.ranks)} ranks don't fill a grid of {count}")
    proof = verify(schedule.seed)
    everyone, drawn = np.arange(count), np.random.default_rng(chance).integers(0, count, DRAWN)
    owners = everyone if count <= WHOLE else drawn
    for turn in units(schedule.turns):
        check_ops(schedule, schedule.turns.add(everyone, turn), owners)
    check_turned(schedule, everyone if schedule.op_count <= FEW_OPS else drawn)
    replay(schedule, owners)
    return Proof(proof.steps, _scratch(schedule))


def check_turned(schedule: GeneratedSchedule, ranks: Ints) -> None:
    """Whether these ranks' ops are those of rank 0, turned."""
    turns, count, slices = schedule.turns, schedule.turns.count, len(schedule.seed.weights)
    first = list(schedule.ops_of(0))
    ends = np.array([(op.src, op.dst, op.id % count, op.chunk // slices) for op in first]).reshape(-1, 4)
    for rank in ranks.tolist():
        ours = {op.id: op for op in schedule.ops_of(rank)}
        if len(ours) != len(first):
            raise ScheduleError(f"{schedule.name}: rank {rank} has {len(ours)} ops, but rank 0 has {len(first)}")
        for op, (src, dst, owner, chunk_owner) in zip(first, turns.add(ends, rank).tolist(), strict=True):
            found = ours.get(op.id - op.id % count + owner)
            chunk = chunk_owner * slices + op.chunk % slices
            if found is None or found[1:5] != (src, dst, chunk, op.kind) or found.channel != op.channel:
                raise ScheduleError(
                    f"{schedule.name}: op {op.id} of rank 0, turned, is no op of rank {rank}: not alike"
                )
            if found.deps != tuple([dep - dep % count + owner for dep in op.deps]):
                raise ScheduleError(
                    f"{schedule.name}: op {found.id} of rank {rank} waits for others than rank 0's does"
                )


def replay(schedule: GeneratedSchedule, owners: Ints) -> None:
    """Every op about these owners' chunks, with a bit for each contributor instead of numbers; many owners at once."""
    seed, turns = schedule.seed, schedule.turns
    count, words = turns.count, -(-turns.count // 64)
    everyone, lane = np.arange(count), np.arange(len(owners))
    own = np.zeros((count, words), dtype=np.uint64)
    own[everyone, everyone // 64] = np.uint64(1) << (everyone % 64).astype(np.uint64)
    places = turns.add(everyone[:, None], owners[None, :])
    if not (np.sort(places, axis=0) == everyone[:, None]).all():
        raise ScheduleError(f"{schedule.name}: turning the grid puts two ranks in one place: no relabelling")
    for chunk in range(len(seed.weights)):
        held = np.zeros((len(owners), count, words), dtype=np.uint64)
        if seed.collective in ("all_gather", "broadcast"):
            held[lane, owners] = own[owners]
        else:
            held[:] = own
        for op in (op for op in seed.ops if op.chunk == chunk):
            source, target = (lane, places[op.src]), (lane, places[op.dst])
            if op.kind == "copy":
                held[target] = held[source]
                continue
            if (held[target] & held[source]).any():
                raise ScheduleError(f"{schedule.name}: op {op.id} of the seed, turned, counts a contribution twice")
            held[target] |= held[source]
        _check_ends(schedule, held, owners, np.bitwise_or.reduce(own, axis=0))


def _check_ends(
    schedule: GeneratedSchedule, held: NDArray[np.uint64], owners: Ints, all_bits: NDArray[np.uint64]
) -> None:
    collective, lane = schedule.collective, np.arange(len(owners))
    if collective in ("all_gather", "broadcast"):
        right = (held == held[lane, owners][:, None]).all()
    elif collective == "all_reduce":
        right = (held == all_bits).all()
    else:
        right = (held[lane, owners] == all_bits).all()
    if not right:
        raise ScheduleError(f"{schedule.name}: at the end some rank lacks a contribution to its owner's chunk")


def _scratch(schedule: GeneratedSchedule) -> tuple[float, ...]:
    """What verify finds for the whole list: a slot of each lane that a rank receives what it adds up by."""
    seed, turns = schedule.seed, schedule.turns
    apart = turns.subtract(np.array([op.dst for op in seed.ops]), np.array([op.src for op in seed.ops])).tolist()
    slots: dict[tuple[int, int], int] = {}
    for op, distance in zip(seed.ops, apart, strict=True):
        if op.kind == "reduce":
            lane = (op.channel, distance)
            slots[lane] = max(slots.get(lane, 0), seed.weights[op.chunk])
    return (sum(slots.values()) / sum(seed.weights) / turns.count,) * turns.count
