"""Who has to be done before whom: along a stage, and where stages meet. Each message and exchange exactly once."""

from collections.abc import Iterator, Sequence

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build.expand import sends
from gradtide.schedule.step.build.transfers import sends_back
from gradtide.schedule.step.model import Task
from gradtide.schedule.step.proof.coverage import Spans, tile
from gradtide.schedule.step.proof.index import Index
from gradtide.schedule.step.proof.words import who
from gradtide.schedule.step.shape import Crossing, ExchangeShape

__all__ = ["DataFlow"]

Pair = tuple[int, int]
Ends = dict[int, list[int]]  # device -> tasks


class DataFlow:
    """Walks every copy's way through every stage, and says which task has to wait for which."""

    def __init__(self, index: Index, spans: Spans) -> None:
        self.index, self.shape, self.spans = index, index.shape, spans
        self.used: set[int] = set()  # exchanges and messages that somebody needs
        self._first: dict[tuple[bool, int, int, int], list[int]] = {}  # (back, stage, micro, device): what begins it
        self._last: dict[tuple[bool, int, int, int], int] = {}  # what ends it

    def pairs(self) -> Iterator[Pair]:
        """(earlier, later): the later one reads what the earlier one makes."""
        for (stage, copy, micro), span in self.spans.items():
            yield from self._along(stage, copy, micro, span)
        for number, crossing in enumerate(self.shape.crossings):
            for micro in range(len(self.shape.micro_batches)):
                yield from self._across(number, crossing, micro, False)
                if sends_back(self.shape, crossing):
                    yield from self._across(number, crossing, micro, True)
        self._check_used()

    def _along(self, at: int, copy: int, micro: int, span: Pair) -> Iterator[Pair]:
        """Forward through the segments and exchanges of a stage, then back."""
        stage = self.shape.stages[at]
        devices = [stage.device(copy, shard) for shard in range(stage.shards)]
        walk = _Walk(devices)
        key = (at, micro, tuple(sorted(devices)))
        for segment in range(len(stage.segments)):
            yield from self._exchanges(walk, stage.segments[segment].before, segment, key, span, False)
            for device in devices:
                yield from walk.take(device, self.index.computes["forward", at, segment, micro, device].id)
        yield from self._exchanges(walk, stage.after, len(stage.segments), key, span, False)
        self._keep(walk, False, at, micro)
        if stage.trained:
            yield from self._back(at, key, span, devices, walk)

    def _back(
        self, at: int, key: tuple[int, int, tuple[int, ...]], span: Pair, devices: list[int], ahead: "_Walk"
    ) -> Iterator[Pair]:
        stage, micro = self.shape.stages[at], key[1]
        walk = _Walk(devices)
        yield from self._exchanges(walk, stage.after, len(stage.segments), key, span, True)
        for segment in reversed(range(len(stage.segments))):
            for device in devices:
                halves = self.index.backwards(at, segment, micro, device)
                assert halves is not None, "find_spans saw it"
                yield from walk.take(device, halves[0].id)
                if halves[1] is not halves[0]:
                    yield halves[0].id, halves[1].id
            yield from self._exchanges(walk, stage.segments[segment].before, segment, key, span, True)
        for device in devices:
            yield from ((ahead.at[device], later) for later in walk.begun[device])
        self._keep(walk, True, at, micro)

    def _exchanges(
        self,
        walk: "_Walk",
        exchanges: Sequence[ExchangeShape],
        segment: int,
        key: tuple[int, int, tuple[int, ...]],
        span: Pair,
        back: bool,
    ) -> Iterator[Pair]:
        """Each of these exchanges, one after the other: every shard is in it."""
        stage, micro, members = key
        numbered = list(enumerate(exchanges))
        for number, exchange in reversed(numbered) if back else numbered:
            if len(members) < 2 or not sends(exchange, back):
                continue
            task = self.index.exchanges.get((stage, segment, number, micro, members, back))
            if task is None:
                raise ScheduleError(
                    f"stage {stage}, micro-batch {micro}: exchange {number} "
                    f"{'after backward of' if back else 'before'} segment {segment} "
                    f"({exchange.kind} of {exchange.value}) on devices {members} is missing"
                )
            _check_exchange(task, span, exchange.backward_bytes if back else exchange.forward_bytes)
            self.used.add(task.id)
            for device in members:
                yield from walk.take(device, task.id)

    def _keep(self, walk: "_Walk", back: bool, stage: int, micro: int) -> None:
        for device, begun in walk.begun.items():
            self._first[back, stage, micro, device] = begun
            self._last[back, stage, micro, device] = walk.at[device]

    def _across(self, number: int, crossing: Crossing, micro: int, back: bool) -> Iterator[Pair]:
        """What a device reads of a stage before (or after, going back): all its samples, each from one place."""
        here, there = (crossing.target, crossing.source) if back else (crossing.source, crossing.target)
        size = crossing.backward_bytes if back else crossing.forward_bytes
        stage = self.shape.stages[there]
        for copy in range(stage.copies):
            span = self.spans.get((there, copy, micro))
            for shard in range(stage.shards) if span else ():
                assert span is not None
                device = stage.device(copy, shard)
                begun = self._first[back, there, micro, device]
                pieces = list(self._kept(crossing, micro, back, shard, copy, device))
                waits = [self._last[back, here, micro, device]] if pieces else []
                for task in self.index.messages.get((number, micro, back, device), ()):
                    self._check_message(task, here, crossing, size)
                    pieces.append((task.first, task.last))
                    waits.append(task.id)
                    yield self._last[back, here, micro, task.devices[0]], task.id
                yield from ((earlier, later) for earlier in waits for later in begun)
                way = f"crossing {number}{' back' if back else ''} to stage {there}"
                tile(pieces, span, f"{way}, micro-batch {micro}, on device {device}")

    def _kept(self, crossing: Crossing, micro: int, back: bool, shard: int, copy: int, device: int) -> Iterator[Pair]:
        """The samples that need no message, because the device that would send them is the one that reads them."""
        here, there = (crossing.target, crossing.source) if back else (crossing.source, crossing.target)
        stage, mine = self.shape.stages[here], self.spans[there, copy, micro]
        for other in range(stage.copies):
            span = self.spans.get((here, other, micro))
            if span and stage.device(other, shard % stage.shards) == device and (crossing.batched or other == copy):
                first, last = max(span[0], mine[0]), min(span[1], mine[1])
                if first < last:
                    yield first, last

    def _check_message(self, task: Task, here: int, crossing: Crossing, size: float) -> None:
        """Its source has made all of these samples."""
        stage, source = self.shape.stages[here], task.devices[0]
        place = stage.devices.index(source) if source in stage.devices else -1
        span = self.spans.get((here, place // stage.shards, task.micro)) if place >= 0 else None
        if span is None or not span[0] <= task.first < task.last <= span[1]:
            raise ScheduleError(f"{who(task)}: device {source} does not have samples {task.first} to {task.last - 1}")
        _check_bytes(task, size * (task.last - task.first) if crossing.batched else size)
        self.used.add(task.id)

    def _check_used(self) -> None:
        everything = [*self.index.exchanges.values(), *(task for some in self.index.messages.values() for task in some)]
        for task in everything:
            if task.id not in self.used:
                raise ScheduleError(f"{who(task)}: nobody needs it; leave it out")


class _Walk:
    """The way of a copy's devices through a stage: what each did last, and what it began with."""

    def __init__(self, devices: list[int]) -> None:
        self.at: dict[int, int] = {}
        self.begun: dict[int, list[int]] = {device: [] for device in devices}

    def take(self, device: int, task: int) -> Iterator[Pair]:
        """The next task of a device comes after its last one."""
        if device in self.at:
            yield self.at[device], task
        else:
            self.begun[device].append(task)
        self.at[device] = task


def _check_exchange(task: Task, span: Pair, size: float) -> None:
    if (task.first, task.last) != span:
        raise ScheduleError(
            f"{who(task)}: has samples {task.first} to {task.last - 1}, but its members compute "
            f"{span[0]} to {span[1] - 1}"
        )
    _check_bytes(task, size * (span[1] - span[0]))


def _check_bytes(task: Task, wanted: float) -> None:
    if task.bytes != wanted:
        raise ScheduleError(f"{who(task)}: says {task.bytes:g} bytes, but {wanted:g} have to be sent")
