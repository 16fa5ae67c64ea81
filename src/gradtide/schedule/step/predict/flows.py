"""A step's tasks as flows: computing is a flow of so many seconds over a wire of the device's own.

So one simulator shares everything out: what is sent meets on the links of the topology, what a device computes waits
for what it computed before, and all wait for what they depend on.
"""

import itertools
from collections.abc import Iterable, Sequence

from gradtide.errors import DeviceError
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.predict.relays import Relays
from gradtide.schedule.step.predict.sums import schedule_of_sum
from gradtide.topology.model import Link, Node, NodeKind, Topology

__all__ = ["Flows", "with_clocks"]

CLOCK = "clock"  # whose wire takes what needs no time
MESSAGES, EXCHANGES, SUMS = 0, 2, 3  # channels: messages forward and back, exchanges, then those of sums


def with_clocks(plan: StepPlan, topology: Topology | None) -> Topology:
    """The topology with a wire of 1 byte/s for each device's computing, after its own links."""
    nodes, links = (topology.nodes, topology.links) if topology else ((), ())
    for name in (CLOCK, *plan.devices):
        ends = _wire(name)
        nodes = (*nodes, *(Node(end, NodeKind.DEVICE) for end in ends))
        links = (*links, Link(*ends, 1.0, 0.0))
    return Topology(topology.name if topology else "free", nodes, links)


def _check_names(plan: StepPlan, topology: Topology) -> None:
    known = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    for name in plan.devices:
        if name not in known:
            raise DeviceError(f"{topology.name} has no device {name!r}; its devices are {', '.join(known[:20])}")


def _wire(name: str) -> tuple[str, str]:
    return f"{name} begins", f"{name} ends"


class Flows:
    """The ops of a step. A task begins with op begin[id] and ends with op end[id]."""

    def __init__(self, plan: StepPlan, topology: Topology | None, latency: bool) -> None:
        self.plan, self.topology, self.latency = plan, topology, latency
        if topology is not None:
            _check_names(plan, topology)
        self.ops: list[Op] = []
        self.bytes: list[float] = []
        self.begin: list[int] = []
        self.end: list[int] = []
        self._relays = Relays(topology) if topology else None
        self._ranks: dict[str, int] = {}
        self._doing: dict[int, int] = {}  # device -> what it did last
        self._summing: dict[int, int] = {}  # the same in the background
        for task in plan.tasks:
            begin, end = self._take(task)
            self.begin.append(begin)
            self.end.append(end)

    def schedule(self) -> Schedule:
        ranks = tuple(self._ranks)
        return Schedule("step", "all_reduce", ranks, len(ranks), (1,) * len(self.ops), tuple(self.ops))

    def _take(self, task: Task) -> tuple[int, int]:
        deps = [self.end[dep] for dep in task.deps]
        if task.kind == "message":
            return self._message(task, deps)
        if task.kind == "sum":
            return self._together(task, deps, self._summing)
        if task.kind in ("exchange", "norm"):
            return self._together(task, deps, self._doing)
        op = self._busy(task.devices[0], task.seconds, deps)
        return op, op

    def _busy(self, device: int, seconds: float, deps: Sequence[int]) -> int:
        """A device does something, when it has done all that came before."""
        before = [self._doing[device]] if device in self._doing else []
        self._doing[device] = op = self._add(*_wire(self.plan.devices[device]), seconds, [*deps, *before])
        return op

    def _message(self, task: Task, deps: list[int]) -> tuple[int, int]:
        """It leaves when its source has handed it over."""
        handed = [self._busy(task.devices[0], task.seconds, deps)] if task.seconds else []
        if self.topology is None:
            begin = end = self._moment(handed or deps)
        else:
            source, target = (self.plan.devices[device] for device in task.devices)
            begin, end = self._send(source, target, task.bytes, handed or deps, MESSAGES + task.back)
        return (*handed, begin)[0], end

    def _together(self, task: Task, deps: list[int], lane: dict[int, int]) -> tuple[int, int]:
        """What several do begins when all are there, and ends for all at once."""
        handed = list[int]()
        if task.kind == "sum" and task.seconds:  # each puts together what it has, when it comes to it
            handed = [self._busy(device, task.seconds, ()) for device in task.devices]
        ready = begin = self._moment([*deps, *handed, *self._last(lane, task)])
        if task.kind != "sum" and task.seconds:
            ready = self._moment([self._busy(device, task.seconds, [begin]) for device in task.devices])
        flows = list(self._among(task, ready)) if self.topology is not None else []
        end = self._moment(flows or [ready])
        lane.update(dict.fromkeys(task.devices, end))
        return begin, end

    def _among(self, task: Task, begin: int) -> Iterable[int]:
        names = [self.plan.devices[device] for device in task.devices]
        if task.kind == "sum":
            yield from self._sum(task, tuple(names), begin)
        elif task.kind == "norm":  # to the first one and back
            there = [self._send(name, names[0], task.bytes, [begin], SUMS)[1] for name in names[1:]]
            yield from (self._send(names[0], name, task.bytes, there, SUMS)[1] for name in names[1:])
        else:
            pairs = self._partners(task)
            for source, target in pairs:
                shared = sum(other == source for other, _ in pairs)
                ends = self.plan.devices[source], self.plan.devices[target]
                yield self._send(*ends, task.bytes / shared, [begin], EXCHANGES)[1]

    def _partners(self, task: Task) -> list[tuple[int, int]]:
        """Who sends to whom: a halo to its neighbours, anything else to all."""
        stage = self.plan.shape.stages[task.stage]
        members = sorted(task.devices, key=stage.devices.index)
        before = stage.after if task.segment == len(stage.segments) else stage.segments[task.segment].before
        near = before[task.number].kind == "halo"
        places = range(len(members))
        return [(members[a], members[b]) for a in places for b in places if a != b and (not near or abs(a - b) == 1)]

    def _sum(self, task: Task, names: tuple[str, ...], begin: int) -> Iterable[int]:
        assert self.topology is not None
        schedule = schedule_of_sum(self.topology, names, round(task.bytes), self.latency)
        if schedule is None:  # each adds up its part for all, over other devices where need be
            part = task.bytes / len(names)
            there = [self._send(a, b, part, [begin], SUMS)[1] for a, b in itertools.permutations(names, 2)]
            yield from (self._send(a, b, part, there, SUMS)[1] for a, b in itertools.permutations(names, 2))
            return
        total, placed = sum(schedule.weights), dict[int, int]()
        for op in schedule.ops:
            size = task.bytes * schedule.weights[op.chunk] / total
            deps = [placed[dep] for dep in op.deps] or [begin]
            ends = schedule.ranks[op.src], schedule.ranks[op.dst]
            placed[op.id] = self._add(*ends, size, deps, SUMS + op.channel)
        yield from placed.values()

    def _send(self, source: str, target: str, size: float, deps: Sequence[int], channel: int) -> tuple[int, int]:
        """The first and the last op of a transfer: where no link joins the two, devices in between pass it on."""
        assert self._relays is not None
        ops: list[int] = []
        for hop in itertools.pairwise(self._relays.way(source, target)):
            ops.append(self._add(*hop, size, ops[-1:] or deps, channel))
        return ops[0], ops[-1]

    def _moment(self, deps: Sequence[int]) -> int:
        """Takes no time: a place where several things come together. Each on a lane of its own, to wait for nobody."""
        return self._add(*_wire(CLOCK), 0.0, deps, len(self.ops))

    def _add(self, source: str, target: str, size: float, deps: Sequence[int], channel: int = 0) -> int:
        src, dst = (self._ranks.setdefault(name, len(self._ranks)) for name in (source, target))
        number = len(self.ops)
        self.ops.append(Op(number, src, dst, number, "copy", tuple(set(deps)), channel))
        self.bytes.append(size)
        return number

    def _last(self, lane: dict[int, int], task: Task) -> list[int]:
        return [lane[device] for device in task.devices if device in lane]
