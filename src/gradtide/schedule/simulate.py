"""Predicts when each op of a schedule starts and ends, and what each link carries.

An op may start when its deps have ended. It takes its route's latency, then moves its bytes at the rate that
max-min fair sharing of all links and wires on the way gives it. Ops of one lane (channel, source, target) move
one after the other, in the order of the list; their latencies overlap, as those of messages in flight do.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.schedule.model import Schedule
from gradtide.schedule.resources import SMALL, Path, Resources, fair_rates
from gradtide.topology.model import Topology

__all__ = ["Simulation", "simulate"]

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
    resources = resources or Resources(topology)
    total = sum(schedule.weights)
    chunk_bytes = [size_bytes * weight / total for weight in schedule.weights]
    run = _Run(schedule, resources, chunk_bytes, latency)
    run.to_the_end()
    return _summary(schedule, topology, resources, chunk_bytes, run)


class _Pair:
    """The flows that move between one pair of ranks right now. All have the same rate, so one number serves all:
    `served`, the bytes that each flow present since the beginning would have got. A flow ends when that reaches
    its goal, and a change of rate moves one event, not one per flow."""

    __slots__ = ("goals", "moment", "path", "rate", "served", "version")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.goals: list[tuple[float, int]] = []  # a heap of (served when it ends, op)
        self.rate = self.served = self.moment = 0.0
        self.version = 0

    def advance(self, now: float) -> None:
        self.served += self.rate * (now - self.moment)
        self.moment = now


class _Run:
    """The state of one simulation."""

    def __init__(self, schedule: Schedule, resources: Resources, chunk_bytes: list[float], latency: bool) -> None:
        self.ops, self.capacity, self.chunk_bytes = schedule.ops, resources.capacity, chunk_bytes
        ranks, count = schedule.ranks, len(schedule.ops)
        self.start, self.moving, self.end = [0.0] * count, [0.0] * count, [0.0] * count
        place = {op.id: at for at, op in enumerate(self.ops)}
        self.missing = [len(op.deps) for op in self.ops]
        self.followers: list[list[int]] = [[] for _ in self.ops]
        self.pairs: dict[tuple[int, int], _Pair] = {}
        self.lanes: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for at, op in enumerate(self.ops):
            for dep in op.deps:
                self.followers[place[dep]].append(at)
            key = (op.src, op.dst)
            if key not in self.pairs:
                self.pairs[key] = _Pair(resources.required(ranks[op.src], ranks[op.dst]))
            self.lanes[op.src, op.dst, op.channel].append(at)
        self.heads = dict.fromkeys(self.lanes, 0)  # how far each lane has got
        self.arrived = [False] * count  # its latency is over
        self.latency = latency
        self.events: list[tuple[float, int, int, tuple[int, int]]] = []  # (time, op or -1, version, pair)
        self.active: dict[tuple[int, int], _Pair] = {}
        self.users: dict[int, dict[tuple[int, int], None]] = defaultdict(dict)  # resource -> pairs through it
        self.touched: dict[tuple[int, int], int] = {}  # pairs of this moment -> flows they had before it
        self.known: dict[tuple[tuple[tuple[int, int], int], ...], list[float]] = {}

    def to_the_end(self) -> None:
        for at, missing in enumerate(self.missing):
            if not missing:
                self._ready(at, 0.0)
        self._share(0.0)
        while self.events:
            now = self.events[0][0]
            limit = now + now * SAME_TIME
            while self.events and self.events[0][0] <= limit:
                _, op, version, pair = heapq.heappop(self.events)
                if op >= 0:
                    self._arrive(op, now)
                elif version == self.pairs[pair].version:
                    self._finish(pair, now)
            self._share(now)
        assert not any(self.missing), "a verified schedule always ends"

    def _ready(self, at: int, now: float) -> None:
        self.start[at] = now
        op = self.ops[at]
        latency_s = self.pairs[op.src, op.dst].path.latency_s if self.latency else 0.0
        if latency_s:
            heapq.heappush(self.events, (now + latency_s, at, 0, (op.src, op.dst)))
        else:
            self._arrive(at, now)

    def _arrive(self, at: int, now: float) -> None:
        self.arrived[at] = True
        op = self.ops[at]
        lane = (op.src, op.dst, op.channel)
        if self.lanes[lane][self.heads[lane]] == at:
            self._move(at, now)

    def _move(self, at: int, now: float) -> None:
        """The op's bytes enter their links."""
        op = self.ops[at]
        key = (op.src, op.dst)
        pair = self.pairs[key]
        self.touched.setdefault(key, len(pair.goals))
        pair.advance(now)
        self.moving[at] = now
        heapq.heappush(pair.goals, (pair.served + self.chunk_bytes[op.chunk], at))

    def _finish(self, key: tuple[int, int], now: float) -> None:
        """The pair's first flow has ended, and with it those that end at the same moment."""
        pair = self.pairs[key]
        self.touched.setdefault(key, len(pair.goals))
        pair.version += 1
        pair.advance(now)
        reached = max(pair.served + pair.rate * now * SAME_TIME, pair.goals[0][0])
        ended = []
        while pair.goals and pair.goals[0][0] <= reached:
            ended.append(heapq.heappop(pair.goals)[1])
        if not pair.goals:
            pair.served = 0.0  # keeps the sum small, so that it stays exact
        for at in ended:
            self._end(at, now)

    def _end(self, at: int, now: float) -> None:
        self.end[at] = now
        op = self.ops[at]
        lane = (op.src, op.dst, op.channel)
        self.heads[lane] += 1
        queue, head = self.lanes[lane], self.heads[lane]
        if head < len(queue) and self.arrived[queue[head]]:
            self._move(queue[head], now)
        for follower in self.followers[at]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._ready(follower, now)

    def _share(self, now: float) -> None:
        """New rates for those whose company changed in this moment, and a new end for whoever has a new rate."""
        changed = [key for key, before in self.touched.items() if len(self.pairs[key].goals) != before]
        for key in changed:
            self._enlist(key)
        for keys in self._companies(changed):
            state = tuple((key, len(self.active[key].goals)) for key in keys)
            rates = self.known.get(state)
            if rates is None:
                rates = fair_rates([(self.active[key].path, count) for key, count in state], self.capacity)
                self.known[state] = rates
            for key, rate in zip(keys, rates, strict=True):
                if rate != self.active[key].rate:
                    self.active[key].advance(now)
                    self.active[key].rate = rate
                    self.touched[key] = -1
        for key in self.touched:
            self._plan_end(key, now)
        self.touched = {}

    def _enlist(self, key: tuple[int, int]) -> None:
        pair = self.pairs[key]
        if pair.goals and key not in self.active:
            self.active[key] = pair
            for number in pair.path.resources:
                self.users[number][key] = None
        elif not pair.goals:
            pair.rate = 0.0
            del self.active[key]
            for number in set(pair.path.resources):
                del self.users[number][key]

    def _companies(self, changed: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """The groups of pairs that compete, directly or through others, with a changed one."""
        if len(self.active) > SMALL and len(changed) > 1:
            return [sorted(self.active)]  # numpy fills all of them faster than we could tell them apart
        seen: set[tuple[int, int]] = set()
        groups = []
        for first in changed:
            if first in seen:
                continue
            todo, group = [first], []
            seen.add(first)
            while todo:
                key = todo.pop()
                if key in self.active:
                    group.append(key)
                for number in self.pairs[key].path.resources:
                    fresh = [other for other in self.users[number] if other not in seen]
                    seen.update(fresh)
                    todo += fresh
            groups.append(sorted(group))
        return groups

    def _plan_end(self, key: tuple[int, int], now: float) -> None:
        pair = self.pairs[key]
        pair.version += 1
        if pair.goals:
            end = now + max(0.0, pair.goals[0][0] - pair.served) / pair.rate
            heapq.heappush(self.events, (end, -1, pair.version, key))


def _summary(
    schedule: Schedule, topology: Topology, resources: Resources, chunk_bytes: list[float], run: _Run
) -> Simulation:
    carried = np.zeros(len(resources.capacity))
    for op in schedule.ops:
        for number in run.pairs[op.src, op.dst].path.resources:
            carried[number] += chunk_bytes[op.chunk]
    busy = carried / np.array(resources.capacity)
    busiest = int(busy.argmax()) if busy.size else -1
    return Simulation(
        seconds=max(run.end, default=0.0),
        start_s=np.array(run.start),
        moving_s=np.array(run.moving),
        end_s=np.array(run.end),
        link_bytes=carried[: len(topology.links)],
        busiest_link=resources.names[busiest] if schedule.ops else "",
        busiest_seconds=float(busy[busiest]) if schedule.ops else 0.0,
        wire_bytes=sum(chunk_bytes[op.chunk] for op in schedule.ops),
    )
