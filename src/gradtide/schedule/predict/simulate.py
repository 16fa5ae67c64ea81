"""Predicts when each op of a schedule starts and ends, and what each link carries.

An op may start when its deps have ended. It takes its route's latency, then moves its bytes at the rate that
max-min fair sharing of all links and wires on the way gives it. Ops of one lane (channel, source, target) move
one after the other, in the order of the list; their latencies overlap, as those of messages in flight do.

Lists of many ops take a compiled way (compiled_flows.py), with the same result in every digit.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.schedule.model import Schedule
from gradtide.schedule.predict.many_ops import MANY, Times, many_timed
from gradtide.schedule.predict.op_arrays import OpArrays, arrays_of
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.sharing import Competition, Path
from gradtide.topology.model import Topology

__all__ = ["Simulation", "simulate", "simulate_arrays", "simulate_chunks", "timed"]

Floats = npt.NDArray[np.float64]

SAME_TIME = 1e-9  # events closer than that, relative to now, are one event: rounding must not split them


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """When everything happened. Arrays of ops stand in the schedule's order, those of links in the topology's."""

    seconds: float
    start_s: npt.NDArray[np.float64]  # the op's latency starts
    moving_s: npt.NDArray[np.float64]  # its bytes start to move
    end_s: npt.NDArray[np.float64]
    link_bytes: npt.NDArray[np.float64]
    busiest_link: str  # the link, or the shared wire, that its load keeps busy the longest
    busiest_seconds: float
    wire_bytes: float  # every op's bytes, counted once however long its route

    def __repr__(self) -> str:
        return f"Simulation({self.seconds:.6g} s, {len(self.end_s)} ops, busiest {self.busiest_link})"


def simulate(
    schedule: Schedule, topology: Topology, size_bytes: int, *, latency: bool = True, resources: Resources | None = None
) -> Simulation:
    """Runs the schedule on the topology's links. Without latency, what comes out is the bandwidth time alone."""
    total = sum(schedule.weights)
    chunk_bytes = [size_bytes * weight / total for weight in schedule.weights]
    return simulate_chunks(schedule, topology, chunk_bytes, latency=latency, resources=resources)


def simulate_chunks(
    schedule: Schedule,
    topology: Topology,
    chunk_bytes: list[float],
    *,
    latency: bool = True,
    resources: Resources | None = None,
) -> Simulation:
    """The same for ops whose chunks have these sizes, whatever the schedule's weights say."""
    resources = resources or Resources(topology)
    times = timed(schedule, resources, chunk_bytes, latency)
    return _summary(resources, times, _op_bytes(schedule, chunk_bytes))


def simulate_arrays(
    ops: OpArrays, resources: Resources, chunk_bytes: list[float], *, latency: bool = True
) -> Simulation:
    """The same for a list of ops that are arrays."""
    op_bytes = np.array(chunk_bytes)[ops.chunk]
    return _summary(resources, many_timed(ops, resources, op_bytes, latency=latency), op_bytes)


def timed(schedule: Schedule, resources: Competition, chunk_bytes: list[float], latency: bool) -> Times:
    """When each op starts, when its bytes start to move, and when it ends."""
    if len(schedule.ops) >= MANY:
        return many_timed(arrays_of(schedule), resources, _op_bytes(schedule, chunk_bytes), latency=latency)
    run = _Simulator(schedule, resources, chunk_bytes, latency)
    run.to_the_end()
    pair_of = np.array([pair.number for pair in run.pair_of], dtype=np.int64)
    paths = [pair.path for pair in run.pairs]
    return Times(np.array(run.start), np.array(run.moving), np.array(run.end), pair_of, paths)


def _op_bytes(schedule: Schedule, chunk_bytes: list[float]) -> Floats:
    return np.array([chunk_bytes[op.chunk] for op in schedule.ops])


class _Pair:
    """The flows that move between one pair of ranks right now. All have the same rate, so one number serves all:
    `served`, the bytes that each flow present since the beginning would have got. A flow ends when that reaches
    its goal, and a change of rate moves one event, not one per flow."""

    __slots__ = ("goals", "latency_s", "moment", "number", "path", "rate", "served", "version")

    def __init__(self, number: int, path: Path, latency_s: float) -> None:
        self.number, self.path, self.latency_s = number, path, latency_s
        self.goals: list[tuple[float, int]] = []  # a heap of (served when it ends, op)
        self.rate = self.served = self.moment = 0.0
        self.version = 0

    def advance(self, now: float) -> None:
        self.served += self.rate * (now - self.moment)
        self.moment = now


class _Lane:
    """The ops of one channel between one pair of ranks, and how many of them are over."""

    __slots__ = ("done", "queue")

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.done = 0


class _Simulator:
    """The state of one simulation."""

    def __init__(self, schedule: Schedule, resources: Competition, chunk_bytes: list[float], latency: bool) -> None:
        ops, ranks, count = schedule.ops, schedule.ranks, len(schedule.ops)
        self.bytes = [chunk_bytes[op.chunk] for op in ops]
        self.start, self.moving, self.end = [0.0] * count, [0.0] * count, [0.0] * count
        place = {op.id: at for at, op in enumerate(ops)}
        self.missing = [len(op.deps) for op in ops]
        self.followers: list[list[int]] = [[] for _ in ops]
        pairs: dict[tuple[int, int], _Pair] = {}
        lanes: dict[tuple[int, int, int], _Lane] = defaultdict(_Lane)
        self.pair_of: list[_Pair] = []
        self.lane_of: list[_Lane] = []
        for at, op in enumerate(ops):
            _, src, dst, _, _, deps, channel = op
            for dep in deps:
                self.followers[place[dep]].append(at)
            pair = pairs.get((src, dst))
            if pair is None:
                path = resources.required(ranks[src], ranks[dst])
                pair = pairs[src, dst] = _Pair(len(pairs), path, path.latency_s if latency else 0.0)
            self.pair_of.append(pair)
            lane = lanes[src, dst, channel]
            lane.queue.append(at)
            self.lane_of.append(lane)
        self.pairs = list(pairs.values())
        self.sharing = resources.sharing(tuple((ranks[src], ranks[dst]) for src, dst in pairs))
        self.arrived = [False] * count  # its latency is over
        self.events: list[tuple[float, int, int, int]] = []  # (time, op or -1, version, pair)
        self.active = 0  # bit i: pair i has rivals, and flows
        self.touched: dict[int, int] = {}  # pairs of this moment -> flows they had before it

    def to_the_end(self) -> None:
        for at, missing in enumerate(self.missing):
            if not missing:
                self._ready(at, 0.0)
        self._share(0.0)
        events = self.events
        while events:
            now = events[0][0]
            limit = now + now * SAME_TIME
            while events and events[0][0] <= limit:
                self._happen(now, limit)
            if self.touched:
                self._share(now)
        assert not any(self.missing), "a verified schedule always ends"

    def _happen(self, now: float, limit: float) -> None:
        """All events of a moment: flows end before others start, so that their order in the list changes no digit."""
        events, pairs = self.events, self.pairs
        arrived, ended = [], []
        while events and events[0][0] <= limit:
            _, op, version, number = heapq.heappop(events)
            if op >= 0:
                arrived.append(op)
            elif version == pairs[number].version:
                ended += self._finish(pairs[number], now)
        for op in arrived:
            self._arrive(op, now)
        for op in ended:
            self._end(op, now)

    def _ready(self, at: int, now: float) -> None:
        self.start[at] = now
        pair = self.pair_of[at]
        if pair.latency_s:
            heapq.heappush(self.events, (now + pair.latency_s, at, 0, pair.number))
        else:
            self._arrive(at, now)

    def _arrive(self, at: int, now: float) -> None:
        self.arrived[at] = True
        lane = self.lane_of[at]
        if lane.queue[lane.done] == at:
            self._move(at, now)

    def _move(self, at: int, now: float) -> None:
        """The op's bytes enter their links."""
        pair = self.pair_of[at]
        self.touched.setdefault(pair.number, len(pair.goals))
        pair.advance(now)
        self.moving[at] = now
        heapq.heappush(pair.goals, (pair.served + self.bytes[at], at))

    def _finish(self, pair: _Pair, now: float) -> list[int]:
        """The ops of the pair's first flow, which has ended, and of those that end at the same moment."""
        goals = pair.goals
        self.touched.setdefault(pair.number, len(goals))
        pair.version += 1
        pair.advance(now)
        reached = max(pair.served + pair.rate * now * SAME_TIME, goals[0][0])
        ended = []
        while goals and goals[0][0] <= reached:
            ended.append(heapq.heappop(goals)[1])
        if not goals:
            pair.served = 0.0  # keeps the sum small, so that it stays exact
        return ended

    def _end(self, at: int, now: float) -> None:
        self.end[at] = now
        lane = self.lane_of[at]
        lane.done += 1
        if lane.done < len(lane.queue) and self.arrived[lane.queue[lane.done]]:
            self._move(lane.queue[lane.done], now)
        missing = self.missing
        for follower in self.followers[at]:
            missing[follower] -= 1
            if not missing[follower]:
                self._ready(follower, now)

    def _share(self, now: float) -> None:
        """New rates for those whose company changed in this moment, and a new end for whoever has a new rate."""
        changed, rivals = 0, self.sharing.rivals
        for number, before in self.touched.items():
            pair = self.pairs[number]
            count = len(pair.goals)
            if count == before:
                continue
            if not rivals[number]:
                pair.rate = self.sharing.alone(number, count) if count else 0.0
                continue
            changed |= 1 << number | rivals[number]
            if not count:
                pair.rate = 0.0
                self.active &= ~(1 << number)
            elif not before:
                self.active |= 1 << number
        if changed:
            for company, members in self.sharing.companies(self.active):
                if company & changed:
                    self._share_fairly(company, members, now)
        for number in self.touched:
            self._plan_end(self.pairs[number], now)
        self.touched = {}

    def _share_fairly(self, company: int, members: list[int], now: float) -> None:
        pairs = self.pairs
        counts = tuple([len(pairs[number].goals) for number in members])
        for number, rate in zip(members, self.sharing.fair_rates(members, counts, company), strict=True):
            pair = pairs[number]
            if rate != pair.rate:
                pair.advance(now)
                pair.rate = rate
                self.touched[pair.number] = -1

    def _plan_end(self, pair: _Pair, now: float) -> None:
        pair.version += 1
        if pair.goals:
            end = now + max(0.0, pair.goals[0][0] - pair.served) / pair.rate
            heapq.heappush(self.events, (end, -1, pair.version, pair.number))


def _summary(resources: Resources, times: Times, op_bytes: Floats) -> Simulation:
    sent = np.bincount(times.pair_of, op_bytes, len(times.paths))  # between each pair
    carried = np.zeros(len(resources.capacity))
    for path, size in zip(times.paths, sent.tolist(), strict=True):
        for resource in path.resources:
            carried[resource] += size
    busy = carried / np.array(resources.capacity)
    busiest = int((busy >= busy.max() * (1 - 1e-9)).argmax()) if busy.size else -1  # of equals the first
    return Simulation(
        seconds=float(times.end_s.max(initial=0.0)),
        start_s=times.start_s,
        moving_s=times.moving_s,
        end_s=times.end_s,
        link_bytes=carried[: resources.links],
        busiest_link=resources.names[busiest] if len(op_bytes) else "",
        busiest_seconds=float(busy[busiest]) if len(op_bytes) else 0.0,
        wire_bytes=float(sum(op_bytes.tolist())),
    )
