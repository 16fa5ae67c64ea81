"""Many ops, simulated by compiled code: what it takes as arrays, and when everything happened."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.predict.op_arrays import OpArrays, by_key
from gradtide.schedule.predict.sharing import Competition, Path

__all__ = ["MANY", "Times", "many_timed"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MANY = 10_000  # ops: up to there the interpreter takes less than loading numba


class Times(NamedTuple):
    """When each op started, when its bytes started to move, when it ended; and the pair that it went between."""

    start_s: Floats
    moving_s: Floats
    end_s: Floats
    pair_of: Ints
    paths: list[Path]  # of each pair


def many_timed(ops: OpArrays, resources: Competition, op_bytes: Floats, *, latency: bool) -> Times:
    """The same as simulate.py finds, op by op, in every digit."""
    from gradtide.schedule.predict.compiled_flows import FlowProblem, run_flows  # numba: only now

    count, ranks, lanes = len(ops), len(ops.ranks), int(ops.channel.max(initial=0)) + 1
    keys, pair_of = _numbered(ops.src * ranks + ops.dst)
    lane_keys, lane_of = np.unique(pair_of * lanes + ops.channel, return_inverse=True)
    lane_start, lane_item = by_key(lane_of, len(lane_keys))
    next_start, next_item = by_key(ops.deps, count, np.repeat(np.arange(count), ops.dep_counts))
    pairs = tuple((ops.ranks[key // ranks], ops.ranks[key % ranks]) for key in keys.tolist())
    paths = [resources.required(*pair) for pair in pairs]
    sharing = resources.sharing(pairs)
    limit_start = np.cumsum([0, *map(len, sharing.limits)])
    limit_item = np.array([resource for limits in sharing.limits for resource, _ in limits])
    user_of = np.repeat(np.arange(len(pairs)), np.diff(limit_start))
    user_start, user_item = by_key(limit_item, len(sharing.capacity), user_of)
    problem = FlowProblem(
        size=op_bytes,
        pair=pair_of,
        lane=lane_of,
        lane_start=lane_start,
        lane_item=lane_item,
        missing=ops.dep_counts,
        next_start=next_start,
        next_item=next_item,
        latency=np.array([path.latency_s if latency else 0.0 for path in paths]),
        limit_start=limit_start,
        limit_item=limit_item,
        limit_times=np.array([times for limits in sharing.limits for _, times in limits]),
        capacity=np.array(sharing.capacity),
        user_start=user_start,
        user_item=user_item,
        most_flows=int(np.bincount(lane_keys // lanes).max()),
    )
    return Times(*run_flows(problem), pair_of, paths)


def _numbered(keys: Ints) -> tuple[Ints, Ints]:
    """The different keys in the order in which they come, and which of them each is."""
    different, first, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return different[order], np.argsort(order)[which]
