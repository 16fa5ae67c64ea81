"""The simulation of many ops, compiled: the same events and digits as simulate.py, a hundred times sooner.

simulate.py says what happens; here it is arrays. 97,000 ops of mixed:4+4 whose flows all end at different moments take
0.15 s, and 13 s there. What simulate.py calls a company is found anew at each moment, from the resources of those whose
flows came or went.
"""

import warnings
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core.errors import NumbaWarning
from numpy.typing import NDArray

__all__ = ["FlowProblem", "run_flows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAME_TIME = 1e-9  # as in simulate.py
SAME_LEVEL = 1e-12  # as in sharing.py

_COMPILING = Lock()


class FlowProblem(NamedTuple):
    """Ops, the pairs and lanes that they take, and what the pairs' flows are limited by. *_start: see by_key."""

    size: Floats  # bytes of each op
    pair: Ints
    lane: Ints
    lane_start: Ints
    lane_item: Ints  # the ops of each lane, in their order
    missing: Ints  # deps of each op; the run counts them down
    next_start: Ints
    next_item: Ints  # the ops that wait for each
    latency: Floats  # of each pair
    limit_start: Ints
    limit_item: Ints  # the resources of each pair, ...
    limit_times: Ints  # ... and how often it takes them
    capacity: Floats  # of each resource
    user_start: Ints
    user_item: Ints  # the pairs of each resource
    most_flows: int  # of one pair at once


class _Heap(NamedTuple):
    """What will happen, the soonest first: an op's latency is over (version -1), or a pair's first flow ends."""

    time: Floats
    what: Ints
    version: Ints


class _Pairs(NamedTuple):
    """As simulate.py's _Pair, an array for each of its fields."""

    goal: Floats  # pairs × flows
    goal_op: Ints
    flows: Ints
    rate: Floats
    served: Floats
    moment: Floats
    version: Ints
    before: Ints  # flows at the beginning of the moment in which it was touched last
    stamp: Ints  # that moment's number


class _Fill(NamedTuple):
    """What filling a company needs room for."""

    members: Ints
    resources: Ints
    left: Floats
    crowd: Ints
    taken: Ints
    share: Floats  # what a flow would get of a resource that is not full yet
    fresh: Floats  # the rates found
    seen_pair: Ints
    seen: Ints


@njit
def _push(heap, size, time, what, version):  # type: ignore[no-untyped-def]
    at = size
    while at > 0:
        up = (at - 1) // 2
        if heap.time[up] <= time:
            break
        heap.time[at], heap.what[at], heap.version[at] = heap.time[up], heap.what[up], heap.version[up]
        at = up
    heap.time[at], heap.what[at], heap.version[at] = time, what, version
    return size + 1


@njit
def _drop(heap, size):  # type: ignore[no-untyped-def]
    """Without the first."""
    size -= 1
    time, what, version = heap.time[size], heap.what[size], heap.version[size]
    at = 0
    while True:
        low = 2 * at + 1
        if low >= size:
            break
        if low + 1 < size and heap.time[low + 1] < heap.time[low]:
            low += 1
        if heap.time[low] >= time:
            break
        heap.time[at], heap.what[at], heap.version[at] = heap.time[low], heap.what[low], heap.version[low]
        at = low
    heap.time[at], heap.what[at], heap.version[at] = time, what, version
    return size


@njit
def _grown(heap, size):  # type: ignore[no-untyped-def]
    """The heap, with room for one more."""
    if size < len(heap.time):
        return heap
    larger = _Heap(np.zeros(2 * size), np.zeros(2 * size, np.int64), np.zeros(2 * size, np.int64))
    larger.time[:size], larger.what[:size], larger.version[:size] = heap.time, heap.what, heap.version
    return larger


@njit
def _touch(pairs, touched, count, pair, turn, now):  # type: ignore[no-untyped-def]
    """The pair's flows change in this moment: what they got until now is counted."""
    if pairs.stamp[pair] != turn:
        pairs.stamp[pair], pairs.before[pair] = turn, pairs.flows[pair]
        touched[count] = pair
        count += 1
    pairs.served[pair] += pairs.rate[pair] * (now - pairs.moment[pair])
    pairs.moment[pair] = now
    return count


@njit
def _first_goal(pairs, pair):  # type: ignore[no-untyped-def]
    least = pairs.goal[pair, 0]
    for at in range(1, pairs.flows[pair]):
        least = min(least, pairs.goal[pair, at])
    return least


@njit
def _enter(pairs, pair, op, size):  # type: ignore[no-untyped-def]
    """The op's bytes enter their links."""
    at = pairs.flows[pair]
    pairs.goal[pair, at], pairs.goal_op[pair, at] = pairs.served[pair] + size, op
    pairs.flows[pair] += 1


@njit
def _finish(pairs, pair, now, ended, count):  # type: ignore[no-untyped-def]
    """The ops of the pair's first flow, which has ended, and of those that end at the same moment."""
    pairs.version[pair] += 1
    reached = max(pairs.served[pair] + pairs.rate[pair] * now * SAME_TIME, _first_goal(pairs, pair))
    at = 0
    while at < pairs.flows[pair]:
        if pairs.goal[pair, at] > reached:
            at += 1
            continue
        ended[count] = pairs.goal_op[pair, at]
        count += 1
        last = pairs.flows[pair] - 1
        pairs.goal[pair, at], pairs.goal_op[pair, at] = pairs.goal[pair, last], pairs.goal_op[pair, last]
        pairs.flows[pair] = last
    if pairs.flows[pair] == 0:
        pairs.served[pair] = 0.0
    return count


@njit
def _company(p, pairs, fill, first, turn):  # type: ignore[no-untyped-def]
    """The pairs with flows that compete for a resource, directly or through others, and all that they compete for."""
    fill.seen[first], fill.resources[0] = turn, first
    members, resources, at = 0, 1, 0
    while at < resources:
        resource = fill.resources[at]
        at += 1
        for i in range(p.user_start[resource], p.user_start[resource + 1]):
            pair = p.user_item[i]
            if pairs.flows[pair] == 0 or fill.seen_pair[pair] == turn:
                continue
            fill.seen_pair[pair], fill.members[members] = turn, pair
            members += 1
            for j in range(p.limit_start[pair], p.limit_start[pair + 1]):
                other = p.limit_item[j]
                if fill.seen[other] != turn:
                    fill.seen[other], fill.resources[resources] = turn, other
                    resources += 1
    return members, resources


@njit
def _fill(p, pairs, fill, members, resources):  # type: ignore[no-untyped-def]
    """All rates rise together; when a resource is full, the flows through it stay as they are."""
    left, crowd, taken = fill.left, fill.crowd, fill.taken
    for at in range(resources):
        left[fill.resources[at]], crowd[fill.resources[at]] = p.capacity[fill.resources[at]], 0
    for at in range(members):
        pair = fill.members[at]
        for j in range(p.limit_start[pair], p.limit_start[pair + 1]):
            crowd[p.limit_item[j]] += pairs.flows[pair] * p.limit_times[j]
    for at in range(resources):
        fill.share[fill.resources[at]] = left[fill.resources[at]] / max(1, crowd[fill.resources[at]])
    while members:
        level, used = np.inf, 0
        for at in range(resources):
            resource = fill.resources[at]
            if crowd[resource]:
                level = min(level, fill.share[resource])
                fill.resources[used] = resource
                used += 1
        resources = used
        nearly = level * (1 + SAME_LEVEL)
        at = 0
        while at < members:
            pair = fill.members[at]
            full = False
            for j in range(p.limit_start[pair], p.limit_start[pair + 1]):
                full = full or fill.share[p.limit_item[j]] <= nearly
            if not full:
                at += 1
                continue
            fill.fresh[pair] = level
            for j in range(p.limit_start[pair], p.limit_start[pair + 1]):
                taken[p.limit_item[j]] += pairs.flows[pair] * p.limit_times[j]
            members -= 1
            fill.members[at], fill.members[members] = fill.members[members], pair
        for at in range(resources):
            resource = fill.resources[at]
            if taken[resource]:
                left[resource] -= level * taken[resource]
                crowd[resource] -= taken[resource]
                taken[resource] = 0
                fill.share[resource] = left[resource] / max(1, crowd[resource])


@njit
def _share(p, pairs, fill, touched, count, turn, now):  # type: ignore[no-untyped-def]
    """New rates for those whose company changed in this moment."""
    for k in range(count):
        pair = touched[k]
        if pairs.flows[pair] == pairs.before[pair]:
            continue
        if pairs.flows[pair] == 0:
            pairs.rate[pair] = 0.0
        for j in range(p.limit_start[pair], p.limit_start[pair + 1]):
            if fill.seen[p.limit_item[j]] == turn:
                continue
            members, resources = _company(p, pairs, fill, p.limit_item[j], turn)
            _fill(p, pairs, fill, members, resources)
            for at in range(members):
                other = fill.members[at]
                if fill.fresh[other] != pairs.rate[other]:
                    count = _touch(pairs, touched, count, other, turn, now)
                    pairs.rate[other] = fill.fresh[other]
    return count


def _run(p):  # type: ignore[no-untyped-def]
    ops, many, kinds = len(p.size), len(p.latency), len(p.capacity)
    start, moving, end = np.zeros(ops), np.zeros(ops), np.zeros(ops)
    arrived, done = np.zeros(ops, np.bool_), np.zeros(len(p.lane_start) - 1, np.int64)
    none = np.full(many, -1, np.int64)
    pairs = _Pairs(
        np.zeros((many, p.most_flows)), np.zeros((many, p.most_flows), np.int64), np.zeros(many, np.int64),
        np.zeros(many), np.zeros(many), np.zeros(many), np.zeros(many, np.int64), np.zeros(many, np.int64), none,
    )  # fmt: skip
    fill = _Fill(
        np.zeros(many, np.int64), np.zeros(kinds, np.int64), np.zeros(kinds), np.zeros(kinds, np.int64),
        np.zeros(kinds, np.int64), np.zeros(kinds), np.zeros(many), none.copy(), np.full(kinds, -1, np.int64),
    )  # fmt: skip
    heap = _Heap(np.zeros(ops + 1), np.zeros(ops + 1, np.int64), np.zeros(ops + 1, np.int64))
    touched, events, turn, now = np.zeros(many, np.int64), 0, 0, 0.0
    ready, came, ended = np.zeros(ops, np.int64), np.zeros(ops, np.int64), np.zeros(ops, np.int64)
    waiting = 0
    for op in range(ops):
        if p.missing[op] == 0:
            ready[waiting] = op
            waiting += 1
    while True:
        limit, count, coming, ending = now + now * SAME_TIME, 0, 0, 0
        while True:  # all that happens in this moment
            while waiting:
                waiting -= 1
                op = ready[waiting]
                start[op] = now
                if p.latency[p.pair[op]] > 0.0:
                    heap = _grown(heap, events)
                    events = _push(heap, events, now + p.latency[p.pair[op]], op, -1)
                else:
                    came[coming] = op
                    coming += 1
            for k in range(coming + ending):
                if k < coming:
                    op = came[k]
                    arrived[op] = True
                    lane = p.lane[op]
                    moves = p.lane_item[p.lane_start[lane] + done[lane]] == op
                else:
                    over = ended[k - coming]
                    end[over] = now
                    for j in range(p.next_start[over], p.next_start[over + 1]):
                        p.missing[p.next_item[j]] -= 1
                        if p.missing[p.next_item[j]] == 0:
                            ready[waiting] = p.next_item[j]
                            waiting += 1
                    lane = p.lane[over]
                    done[lane] += 1
                    at = p.lane_start[lane] + done[lane]
                    op = p.lane_item[at] if at < p.lane_start[lane + 1] else over
                    moves = op != over and arrived[op]
                if moves:
                    pair = p.pair[op]
                    count = _touch(pairs, touched, count, pair, turn, now)
                    moving[op] = now
                    _enter(pairs, pair, op, p.size[op])
            coming = ending = 0
            if waiting:
                continue
            while events and heap.time[0] <= limit:
                what, version = heap.what[0], heap.version[0]
                events = _drop(heap, events)
                if version < 0:
                    came[coming] = what
                    coming += 1
                elif version == pairs.version[what]:
                    count = _touch(pairs, touched, count, what, turn, now)
                    ending = _finish(pairs, what, now, ended, ending)
            if not coming and not ending:
                break
        count = _share(p, pairs, fill, touched, count, turn, now)
        for k in range(count):
            pair = touched[k]
            pairs.version[pair] += 1
            if pairs.flows[pair]:
                heap = _grown(heap, events)
                left = max(0.0, _first_goal(pairs, pair) - pairs.served[pair])
                events = _push(heap, events, now + left / pairs.rate[pair], pair, pairs.version[pair])
        turn += 1
        if not events:
            return start, moving, end
        now = heap.time[0]


@cache
def _compiled(cached: bool) -> Callable[..., Any]:
    compiled: Callable[..., Any] = njit(nogil=True, cache=cached)(_run)
    return compiled


def _ready(cached: bool) -> Callable[..., Any]:
    """The compiled run, one for all threads: each would take seconds."""
    with _COMPILING, warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        return _compiled(cached)


def run_flows(problem: FlowProblem) -> tuple[Floats, Floats, Floats]:
    """When each op starts, when its bytes start to move, and when it ends."""
    try:
        start, moving, end = _ready(True)(problem._replace(missing=problem.missing.copy()))
    except Exception:  # a cache that can't be written costs the seconds of a compilation, never the run
        start, moving, end = _ready(False)(problem._replace(missing=problem.missing.copy()))
    return start, moving, end
