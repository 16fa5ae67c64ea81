"""Every turn of a row becomes tasks: what its devices compute, exchange among shards and send on."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gradtide.schedule.step.build.rows import StageTurn
from gradtide.schedule.step.build.transfers import handovers, sends_back, share_of
from gradtide.schedule.step.model import Task, TaskKind
from gradtide.schedule.step.shape import ExchangeKind, ExchangeShape, SegmentShape, StepShape

__all__ = ["Expansion", "sends"]

SENT: dict[ExchangeKind, tuple[bool, bool]] = {  # whether something is sent: there, back
    "gather": (True, True),
    "collect": (True, False),
    "sum": (True, False),
    "spread": (False, True),
    "slice": (False, True),
    "halo": (True, True),
}


def sends(exchange: ExchangeShape, back: bool) -> bool:
    """Whether an exchange is one in this direction: a value without a gradient sends none back."""
    return SENT[exchange.kind][back] and not (back and not exchange.backward_bytes)


class Expansion:
    """The tasks so far, and what those that come have to wait for."""

    def __init__(self, shape: StepShape) -> None:
        self.shape = shape
        self.tasks: list[Task] = []
        self.last: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (device, stage) -> segment -> gradients
        self.inputs: dict[tuple[int, int, int, int], int] = {}  # (device, stage, micro, segment): half a backward
        # By (back, stage, micro, device): what a stage there reads, and what ended it.
        self._ready: dict[tuple[bool, int, int, int], list[int]] = defaultdict(list)
        self._made: dict[tuple[bool, int, int, int], tuple[int, ...]] = {}

    def add(self, kind: TaskKind, devices: tuple[int, ...], deps: Iterable[int], **fields: Any) -> int:
        self.tasks.append(Task(len(self.tasks), kind, devices, deps=tuple(sorted(set(deps))), **fields))
        return len(self.tasks) - 1

    def take(self, turn: StageTurn) -> None:
        """Adds the tasks of a turn, copy by copy, and the messages that it makes possible."""
        for copy in range(self.shape.stages[turn.stage].copies):
            first, last = share_of(self.shape, turn.stage, copy, turn.micro)
            if first < last:
                part = _Part(self, turn, copy, first, last)
                {"forward": part.forward, "weights": part.weights}.get(turn.kind, part.backward)()
        if turn.kind != "weights":
            self._send(turn)

    def begin(self, back: bool, stage: int, micro: int, device: int) -> set[int]:
        """What a device waits for before it begins a stage."""
        ready = set(self._ready[back, stage, micro, device])
        return ready | set(self._made[False, stage, micro, device]) if back else ready

    def end(self, back: bool, stage: int, micro: int, device: int, tasks: set[int]) -> None:
        self._made[back, stage, micro, device] = tuple(tasks)

    def speed(self, device: int) -> float:
        return self.shape.speeds[device] if self.shape.speeds else 1.0

    def received(self, deps: Iterable[int]) -> float:
        """Seconds of taking the messages among these."""
        found = (self.tasks[dep] for dep in deps)
        return sum(self.shape.overheads.receive.of(task.bytes) for task in found if task.kind == "message")

    def _send(self, turn: StageTurn) -> None:
        """What the stage made goes to whoever reads it; where that is the same device, it only has to wait for it."""
        back, micro = turn.kind != "forward", turn.micro
        for number, crossing in enumerate(self.shape.crossings):
            here, there = (crossing.target, crossing.source) if back else (crossing.source, crossing.target)
            if here != turn.stage or (back and not sends_back(self.shape, crossing)):
                continue
            size = crossing.backward_bytes if back else crossing.forward_bytes
            for source, target, first, last in handovers(self.shape, crossing, micro, back):
                made = self._made[back, here, micro, source]
                if source != target:
                    moved = size * (last - first) if crossing.batched else size
                    span = {"micro": micro, "first": first, "last": last, "back": back, "bytes": moved}
                    span["seconds"] = self.shape.overheads.send.of(moved) / self.speed(source)
                    made = (self.add("message", (source, target), made, stage=here, number=number, **span),)
                self._ready[back, there, micro, target] += made


class _Part:
    """What one copy does in a turn: the same on each of its shards."""

    def __init__(self, tasks: Expansion, turn: StageTurn, copy: int, first: int, last: int) -> None:
        self.tasks, self.kind, self.number, self.micro = tasks, turn.kind, turn.stage, turn.micro
        self.stage = tasks.shape.stages[turn.stage]
        self.devices = tuple(self.stage.device(copy, shard) for shard in range(self.stage.shards))
        self.span = {"stage": turn.stage, "micro": turn.micro, "first": first, "last": last}
        self.samples = last - first
        self.before: dict[int, set[int]] = {}  # what each device's next task waits for

    def forward(self) -> None:
        self._begin(False)
        for at, segment in enumerate(self.stage.segments):
            self._exchange(segment.before, at, False)
            for device in self.devices:
                self._compute("forward", device, at, segment.forward.of(self.samples), self.before[device])
        self._exchange(self.stage.after, len(self.stage.segments), False)
        self._end(False)

    def backward(self) -> None:
        """The other way round. Gradients of parameters are added to those of the micro-batch before."""
        self._begin(True)
        self._exchange(self.stage.after, len(self.stage.segments), True)
        for at, segment in reversed(list(enumerate(self.stage.segments))):
            for device in self.devices:
                adds = self._sum_so_far(device, at) if self.kind == "backward" else set()
                seconds = self._back_seconds(segment) + (self._add_seconds(segment) if adds else 0.0)
                task = self._compute(self.kind, device, at, seconds, self.before[device] | adds)
                if self.kind == "backward":
                    self.tasks.last[device, self.number][at] = task
                else:
                    self.tasks.inputs[device, self.number, self.micro, at] = task
            self._exchange(segment.before, at, True)
        self._end(True)

    def weights(self) -> None:
        """Needs what backward's first half found, and adds to the sum so far."""
        for device in self.devices:
            for at, segment in reversed(list(enumerate(self.stage.segments))):
                adds = self._sum_so_far(device, at)
                seconds = segment.backward.of(self.samples) * segment.for_weights
                seconds += self._add_seconds(segment) if adds else 0.0
                deps = {self.tasks.inputs[device, self.number, self.micro, at]} | adds
                self.before[device] = set()
                self.tasks.last[device, self.number][at] = self._compute("weights", device, at, seconds, deps)

    def _begin(self, back: bool) -> None:
        self.before = {device: self.tasks.begin(back, self.number, self.micro, device) for device in self.devices}

    def _end(self, back: bool) -> None:
        for device in self.devices:
            self.tasks.end(back, self.number, self.micro, device, self.before[device])

    def _compute(self, kind: TaskKind, device: int, segment: int, seconds: float, deps: set[int]) -> int:
        """`seconds` of a device of speed 1, without what comes with every task, and with messages."""
        seconds += self.tasks.shape.overheads.task_s + self.tasks.received(deps)
        seconds /= self.tasks.speed(device)
        task = self.tasks.add(kind, (device,), deps, segment=segment, seconds=seconds, **self.span)
        self.before[device] = {task}
        return task

    def _exchange(self, exchanges: Sequence[ExchangeShape], segment: int, back: bool) -> None:
        """One after the other, and back the other way round; every shard waits for all."""
        numbered = list(enumerate(exchanges))
        for number, exchange in reversed(numbered) if back else numbered:
            if len(self.devices) > 1 and sends(exchange, back):
                moved = (exchange.backward_bytes if back else exchange.forward_bytes) * self.samples
                fields = {"segment": segment, "number": number, "back": back, "bytes": moved, **self.span}
                slowest = min(self.tasks.speed(device) for device in self.devices)
                fields["seconds"] = self.tasks.shape.overheads.exchange.of(moved) / slowest
                deps = set().union(*self.before.values())
                task = self.tasks.add("exchange", tuple(sorted(self.devices)), deps, **fields)
                self.before = {device: {task} for device in self.devices}

    def _sum_so_far(self, device: int, segment: int) -> set[int]:
        last = self.tasks.last[device, self.number]
        return {last[segment]} if segment in last else set()

    def _back_seconds(self, segment: SegmentShape) -> float:
        again = segment.forward.of(self.samples) if self.stage.recompute else 0.0
        share = 1 - segment.for_weights if self.kind == "inputs" else 1.0
        return again + segment.backward.of(self.samples) * share

    def _add_seconds(self, segment: SegmentShape) -> float:
        """Of adding gradients of parameters to those that are there."""
        return sum(unit.gradient_bytes for unit in segment.units) * self.tasks.shape.overheads.add_s_per_byte
