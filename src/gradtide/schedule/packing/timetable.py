"""Which piece goes over which wire when.

Fair sharing would let all pieces creep along together, and what comes after them would wait. So each wire takes one
piece after the other at full speed. Whenever a wire gets free, the most urgent piece that is ready and finds room on
all wires of its route takes them. Pieces have equal sizes so that wires get free together, and few wait for a partner.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.pieces import Arc, Step, TreeGroup

__all__ = ["Hop", "Timetable", "timetable"]

LEAST_RATE = 0.25  # of full speed, for a piece to start on wires that others use; most wires are then never half idle
URGENCY = 3.0  # how many hops' time a piece is ahead per hop that it has left; 0 costs 5 % on a ring of 8


@dataclass(slots=True)
class Hop:
    """A piece on its way from one node to the next."""

    source: int
    target: int
    piece: int
    reduces: bool
    arc: int
    urgency: tuple[float, int]  # least first
    waits_for: int  # how many hops must be over before
    next_ones: list["Hop"] = field(default_factory=list)
    after: tuple["Hop", ...] = ()  # those that used its wires just before it
    number: int = -1  # in the order of starting
    rate: float = 0.0
    done_at: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Hops in the order in which they start."""

    hops: list[Hop]
    seconds: float
    roots: list[int]  # of each piece

    @property
    def piece_weights(self) -> tuple[int, ...]:
        return (1,) * len(self.roots)

    def steps(self) -> list[Step]:
        return [
            Step(hop.source, hop.target, hop.piece, hop.reduces, after=tuple(earlier.number for earlier in hop.after))
            for hop in self.hops
        ]


def timetable(
    network: WireNetwork, groups: Sequence[TreeGroup], counts: Sequence[int], size_bytes: float, span_s: float
) -> Timetable:
    """Sends all pieces of all groups, greedily, each group evenly over the span."""
    piece_bytes = size_bytes / sum(counts)
    seconds = _full_speed_seconds(network, piece_bytes)
    hops: list[Hop] = []
    roots: list[int] = []
    for group, count in zip(groups, counts, strict=True):
        for at in range(count):
            hops += _hops_of(network, group, len(roots), (at + 0.5) / count * span_s, seconds)
            roots.append(group.root)
    clock = _Clock(network, piece_bytes, seconds)
    clock.run(hops)
    return Timetable(clock.started, clock.now, roots)


def _full_speed_seconds(network: WireNetwork, piece_bytes: float) -> list[float]:
    slowest = (network.wire_load / network.bytes_per_s[:, None]).max(axis=0)
    return [float(value) for value in slowest * piece_bytes]


def _hops_of(network: WireNetwork, group: TreeGroup, piece: int, due_s: float, seconds: list[float]) -> list[Hop]:
    """The hops of one piece, each linked to those that wait for it."""
    arrives: dict[int, list[Hop]] = defaultdict(list)
    hops = [_hop(network, arrives, arc, piece, reduces=True) for arc in group.up]
    gathered = arrives[group.root]
    arrives = defaultdict(list, {group.root: gathered})
    hops += [_hop(network, arrives, arc, piece, reduces=False) for arc in group.down]
    left: dict[int, int] = {}  # hops from here to the end
    n = len(network.nodes)
    for hop in reversed(hops):
        left[id(hop)] = 1 + max((left[id(later)] for later in hop.next_ones), default=0)
        turn = (hop.target - hop.source) % n  # ties: everyone sends to another neighbour
        hop.urgency = (due_s - URGENCY * left[id(hop)] * seconds[hop.arc], turn)
    return hops


def _hop(network: WireNetwork, arrives: dict[int, list[Hop]], arc: Arc, piece: int, *, reduces: bool) -> Hop:
    source, target = arc
    before = arrives[source]
    hop = Hop(source, target, piece, reduces, int(network.arc_of[source, target]), (0.0, 0), len(before))
    for earlier in before:
        earlier.next_ones.append(hop)
    arrives[target].append(hop)
    return hop


class _Clock:
    """Lets hops start as wires get free."""

    def __init__(self, network: WireNetwork, piece_bytes: float, seconds: list[float]) -> None:
        self.piece_bytes, self.now = piece_bytes, 0.0
        self.latency = [float(value) for value in network.latency_s]
        used = [np.flatnonzero(column) for column in network.wire_load.T]
        self.wires = [[(int(w), float(network.wire_load[w, arc])) for w in ws] for arc, ws in enumerate(used)]
        self.full = [piece_bytes / value for value in seconds]
        self.free = [float(value) for value in network.bytes_per_s]
        self.arcs: list[list[int]] = [[] for _ in self.free]  # through each wire
        for arc, ws in enumerate(self.wires):
            for wire, _ in ws:
                self.arcs[wire].append(arc)
        self.alone = [all(len(self.arcs[wire]) == 1 for wire, _ in ws) for ws in self.wires]
        self.ready: list[list[tuple[tuple[float, int], int, Hop]]] = [[] for _ in self.wires]
        self.writing: dict[tuple[int, int], list[Hop]] = {}  # (node, piece) being added to -> who waits for its turn
        self.ends: list[tuple[float, int, Hop]] = []
        self.last: list[tuple[float, list[Hop]]] = [(0.0, []) for _ in self.free]  # who left each wire last, and when
        self.started: list[Hop] = []
        self.slow: dict[int, Hop] = {}  # those that have less than their full speed, by number
        self.queued = 0

    def run(self, hops: list[Hop]) -> None:
        for hop in hops:
            if not hop.waits_for:
                self._release(hop, set())
        self._start(range(len(self.wires)))
        while self.ends:
            self.now = self.ends[0][0]
            touched: set[int] = set()
            while self.ends and self.ends[0][0] <= self.now * (1 + 1e-9):
                when, _, hop = heapq.heappop(self.ends)
                if not hop.rate:
                    self._queue(hop, touched)
                elif when == hop.done_at:  # and it hasn't got faster since
                    self._end(hop, touched)
            self._speed_up()
            self._start(sorted(touched))

    def _release(self, hop: Hop, touched: set[int]) -> None:
        """On wires that no other arc uses, latency overlaps with what goes before; elsewhere it keeps wires waiting."""
        if self.alone[hop.arc]:
            self.queued += 1
            heapq.heappush(self.ends, (self.now + self.latency[hop.arc], self.queued, hop))
        else:
            self._queue(hop, touched)

    def _queue(self, hop: Hop, touched: set[int]) -> None:
        self.queued += 1
        heapq.heappush(self.ready[hop.arc], (hop.urgency, self.queued, hop))
        touched.add(hop.arc)

    def _end(self, hop: Hop, touched: set[int]) -> None:
        self.slow.pop(hop.number, None)
        for wire, load in self.wires[hop.arc]:
            self.free[wire] += hop.rate * load
            touched.update(arc for arc in self.arcs[wire] if self.ready[arc])
            when, who = self.last[wire]
            if when == self.now:
                who.append(hop)
            else:
                self.last[wire] = (self.now, [hop])
        released = self.writing.pop((hop.target, hop.piece)) if hop.reduces else []
        for later in hop.next_ones:
            later.waits_for -= 1
            if not later.waits_for:
                released.append(later)
        for later in released:
            self._release(later, touched)

    def _speed_up(self) -> None:
        """Whoever shares its wires takes what others have left on them."""
        for hop in list(self.slow.values()):
            more = min(self.free[wire] / load for wire, load in self.wires[hop.arc])
            more = min(more, self.full[hop.arc] - hop.rate)
            if more > 1e-6 * self.full[hop.arc]:
                left_s = (hop.done_at - self.now) * hop.rate / (hop.rate + more)
                self._take(hop, more, left_s)

    def _take(self, hop: Hop, rate: float, left_s: float) -> None:
        for wire, load in self.wires[hop.arc]:
            self.free[wire] -= rate * load
        hop.rate += rate
        hop.done_at = self.now + left_s
        if hop.rate < (1 - 1e-6) * self.full[hop.arc]:
            self.slow[hop.number] = hop
        else:
            self.slow.pop(hop.number, None)
        self.queued += 1
        heapq.heappush(self.ends, (hop.done_at, self.queued, hop))

    def _start(self, arcs: Sequence[int]) -> None:
        """The most urgent first, on whichever of these arcs has room."""
        line: list[tuple[tuple[float, int], int, Hop]] = []
        for arc in arcs:
            self._offer(arc, line)
        while line:
            _, _, hop = heapq.heappop(line)
            rate = min(self.full[hop.arc], *(self.free[wire] / load for wire, load in self.wires[hop.arc]))
            if rate < LEAST_RATE * self.full[hop.arc]:
                continue
            heapq.heappop(self.ready[hop.arc])
            waiting = self.writing.get((hop.target, hop.piece)) if hop.reduces else None
            if waiting is None:
                self._go(hop, rate)
            else:
                waiting.append(hop)  # one sum at a time
            self._offer(hop.arc, line)

    def _offer(self, arc: int, line: list[tuple[tuple[float, int], int, Hop]]) -> None:
        if self.ready[arc]:
            heapq.heappush(line, self.ready[arc][0])

    def _go(self, hop: Hop, rate: float) -> None:
        before: dict[int, Hop] = {}
        for wire, _ in self.wires[hop.arc]:
            for earlier in self.last[wire][1]:  # even if it came later than they left: the order is the plan
                if earlier.arc != hop.arc:  # those of one arc go one after the other anyway
                    before[earlier.number] = earlier
        hop.after, hop.number = tuple(before.values()), len(self.started)
        if hop.reduces:
            self.writing[hop.target, hop.piece] = []
        self.started.append(hop)
        self._take(hop, rate, self.piece_bytes / rate + (0.0 if self.alone[hop.arc] else self.latency[hop.arc]))
