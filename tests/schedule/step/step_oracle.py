"""Runs a step on whole numbers, in any order that its deps allow, and on one device that does all, to compare."""

import random
from collections import defaultdict

from gradtide.schedule.step.build.expand import sends
from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.shape import ExchangeShape, StepShape

PRIME = (1 << 61) - 1
Numbers = dict[int, int]  # sample -> number
Gradients = dict[tuple[str, int], int]  # ("stage" or "tie", its number) -> number


def read(stage: int, sample: int) -> int:
    return 1 + 7 * sample + 13 * stage


def forward(stage: int, segment: int, shard: int, number: int) -> int:
    return (number * (3 + segment) + (shard + 1) * (stage + 1 + segment)) % PRIME


def reference(shape: StepShape) -> dict[tuple[int, int], Gradients]:
    """(stage, shard) -> its gradients, of all samples, by straight evaluation: no copies, no micro-batches."""
    samples = range(sum(shape.micro_batches))
    out: dict[tuple[int, int], Numbers] = {}
    inputs: dict[tuple[int, int, int], Numbers] = {}
    for at, stage in enumerate(shape.stages):
        values = {}
        for shard in range(stage.shards):
            given = {x: read(at, x) for x in samples}
            for number, crossing in enumerate(shape.crossings):
                if crossing.target == at:
                    source = out[crossing.source, shard % shape.stages[crossing.source].shards]
                    given = {x: (given[x] + (number + 2) * source[x]) % PRIME for x in samples}
            values[shard] = given
        for segment, content in enumerate(stage.segments):
            _exchange_all(values, content.before, False)
            for shard in values:
                inputs[at, segment, shard] = values[shard]
                values[shard] = {x: forward(at, segment, shard, v) for x, v in values[shard].items()}
        _exchange_all(values, stage.after, False)
        out.update({(at, shard): content for shard, content in values.items()})
    return _reference_back(shape, inputs)


def _reference_back(shape: StepShape, inputs: dict[tuple[int, int, int], Numbers]) -> dict[tuple[int, int], Gradients]:
    samples = range(sum(shape.micro_batches))
    back: dict[tuple[int, int], Numbers] = {}
    found: dict[tuple[int, int], Gradients] = {}
    for at in reversed(range(len(shape.stages))):
        stage = shape.stages[at]
        if not stage.trained:
            continue
        values = {}
        for shard in range(stage.shards):
            given = dict.fromkeys(samples, 1)
            for number, crossing in enumerate(shape.crossings):
                if crossing.source == at and crossing.backward_bytes:
                    source = back[crossing.target, shard % shape.stages[crossing.target].shards]
                    given = {x: (given[x] + (number + 2) * source[x]) % PRIME for x in samples}
            values[shard] = given
            found[at, shard] = defaultdict(int)
        _exchange_all(values, stage.after, True)
        for segment in reversed(range(len(stage.segments))):
            for shard in values:
                add(shape, at, found[at, shard], values[shard], inputs[at, segment, shard])
                values[shard] = {x: v * (3 + segment) % PRIME for x, v in values[shard].items()}
            _exchange_all(values, stage.segments[segment].before, True)
        back.update({(at, shard): content for shard, content in values.items()})
    return found


def add(shape: StepShape, stage: int, gradients: Gradients, back: Numbers, inputs: Numbers) -> None:
    """A segment's backward adds to the gradients of its stage and of the ties that it holds."""
    gradients["stage", stage] += sum(v * inputs[x] for x, v in back.items())
    for number, tie in enumerate(shape.ties):
        if stage in tie.stages:
            gradients["tie", number] += sum(v * (inputs[x] + 5) for x, v in back.items())


def _exchange_all(values: dict[int, Numbers], exchanges: tuple[ExchangeShape, ...], back: bool) -> None:
    for exchange in reversed(exchanges) if back else exchanges:
        if len(values) > 1 and sends(exchange, back):
            total = {x: sum(content[x] for content in values.values()) % PRIME for x in values[0]}
            values.update(dict.fromkeys(values, total))


def wanted(plan: StepPlan) -> dict[int, Gradients]:
    """What each device must have when it updates its parameters."""
    shape, alone, found = plan.shape, reference(plan.shape), {}
    for device in range(len(plan.devices)):
        mine: Gradients = {}
        for at, stage in enumerate(shape.stages):
            if device in stage.devices and stage.gradient_bytes:
                shard = stage.devices.index(device) % stage.shards
                if stage.gradient_bytes > sum(tie.bytes for tie in shape.ties if at in tie.stages):
                    mine["stage", at] = alone[at, shard]["stage", at]
                for number, tie in enumerate(shape.ties):
                    if at in tie.stages:
                        even = len({shape.stages[s].shards for s in tie.stages}) == 1
                        total = sum(alone[s, shard if even else 0]["tie", number] for s in tie.stages)
                        mine[f"tie of {at}", number] = total
        if mine:
            found[device] = mine
    return found


class Lacking(Exception):
    """Something was read that was not there."""


class Run:
    """The memories of all devices while a plan runs."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan, self.shape = plan, plan.shape
        self.values: dict[tuple[bool, int, int, int], Numbers] = {}  # (back, device, stage, micro): where it is
        self.inputs: dict[tuple[int, int, int, int], Numbers] = {}
        self.backs: dict[tuple[int, int, int, int], Numbers] = {}  # what weights need of inputs
        self.arrived: dict[tuple[bool, int, int, int], Numbers] = defaultdict(dict)  # (back, device, crossing, micro)
        self.gradients: dict[tuple[int, int], Gradients] = defaultdict(lambda: defaultdict(int))  # (device, stage)
        self.summed: dict[tuple[int, int], dict[int, int]] = {}  # (sum, device)
        self.updated: dict[int, Gradients] = {}

    def take(self, task: Task) -> None:
        try:
            getattr(self, f"_{task.kind}")(task)
        except KeyError as error:
            raise Lacking(f"{task}: {error}") from None

    def _given(self, back: bool, task: Task, device: int) -> Numbers:
        """What a stage begins with on a device: everything that crosses into it."""
        stage, micro = task.stage, task.micro
        shard = self.shape.stages[stage].devices.index(device) % self.shape.stages[stage].shards
        given = {x: 1 if back else read(stage, x) for x in range(task.first, task.last)}
        for number, crossing in enumerate(self.shape.crossings):
            here, there = (crossing.source, crossing.target) if back else (crossing.target, crossing.source)
            if here != stage or (back and not crossing.backward_bytes):
                continue
            other = self.shape.stages[there]
            kept: Numbers = {}
            for copy in range(other.copies):
                if other.device(copy, shard % other.shards) == device:
                    kept = self.values.get((back, device, there, micro), {})
            for x in given:
                value = self.arrived[back, device, number, micro].get(x)
                given[x] = (given[x] + (number + 2) * (kept[x] if value is None else value)) % PRIME
        return given

    def _current(self, back: bool, task: Task, device: int) -> Numbers:
        key = (back, device, task.stage, task.micro)
        if key not in self.values:
            if back:
                self.values[False, device, task.stage, task.micro]  # forward has to be over
            self.values[key] = self._given(back, task, device)
        return {x: self.values[key][x] for x in range(task.first, task.last)}

    def _forward(self, task: Task) -> None:
        device = task.devices[0]
        now = self._current(False, task, device)
        self.inputs[device, task.stage, task.micro, task.segment] = now
        stage = self.shape.stages[task.stage]
        shard = stage.devices.index(device) % stage.shards
        after = {x: forward(task.stage, task.segment, shard, v) for x, v in now.items()}
        self.values[False, device, task.stage, task.micro] = after

    def _backward(self, task: Task) -> None:
        self._inputs(task)
        self._weights(task)

    def _inputs(self, task: Task) -> None:
        device = task.devices[0]
        now = self._current(True, task, device)
        self.backs[device, task.stage, task.micro, task.segment] = now
        self.values[True, device, task.stage, task.micro] = {x: v * (3 + task.segment) % PRIME for x, v in now.items()}

    def _weights(self, task: Task) -> None:
        key = (task.devices[0], task.stage, task.micro, task.segment)
        back = {x: self.backs[key][x] for x in range(task.first, task.last)}
        add(self.shape, task.stage, self.gradients[task.devices[0], task.stage], back, self.inputs[key])

    def _exchange(self, task: Task) -> None:
        parts = [self._current(task.back, task, device) for device in task.devices]
        total = {x: sum(part[x] for part in parts) % PRIME for x in parts[0]}
        for device in task.devices:
            self.values[task.back, device, task.stage, task.micro] = total

    def _message(self, task: Task) -> None:
        source, target = task.devices
        sent = self.values[task.back, source, task.stage, task.micro]
        for x in range(task.first, task.last):
            there = self.arrived[task.back, target, task.number, task.micro]
            there[x] = sent[x] + (there.get(x, 0) if task.back else 0)

    def _own(self, device: int, number: int) -> int:
        """What a device adds to a sum."""
        summed = self.plan.sums[number]
        if summed.tie < 0:
            return self.gradients[device, summed.stage]["stage", summed.stage]
        total = 0
        for at in self.shape.ties[summed.tie].stages:
            stage = self.shape.stages[at]
            if device in stage.devices:
                shard = stage.devices.index(device) % stage.shards
                if shard == max(0, summed.shard):
                    total += self.gradients[device, at]["tie", summed.tie]
        return total

    def _sum(self, task: Task) -> None:
        total = sum(self._own(device, task.number) for device in task.devices)
        for device in task.devices:
            self.summed[task.number, device] = {0: total}

    def _norm(self, task: Task) -> None:
        self.normed = {device: self._all(device) for device in task.devices}

    def _update(self, task: Task) -> None:
        device = task.devices[0]
        if self.shape.clip and self.normed[device] != self._all(device):
            raise Lacking("the norm was taken before the gradients were whole")
        self.updated[device] = self._all(device)

    def _all(self, device: int) -> Gradients:
        """All gradients of a device, as an update sees them."""
        mine: Gradients = {}
        for at, stage in enumerate(self.shape.stages):
            if device not in stage.devices or not stage.gradient_bytes:
                continue
            shard = stage.devices.index(device) % stage.shards
            if stage.gradient_bytes > sum(tie.bytes for tie in self.shape.ties if at in tie.stages):
                mine["stage", at] = self._whole(device, ("stage", at), at, shard)
            for number, tie in enumerate(self.shape.ties):
                if at in tie.stages:
                    mine[f"tie of {at}", number] = self._whole(device, ("tie", number), at, shard)
        return mine

    def _whole(self, device: int, what: tuple[str, int], stage: int, shard: int) -> int:
        for number, summed in enumerate(self.plan.sums):
            key = ("tie", summed.tie) if summed.tie >= 0 else ("stage", summed.stage)
            if key == what and device in summed.devices and summed.shard in (shard, -1):
                return self.summed[number, device][0]
        if what[0] == "tie":  # alone with it: what its own stages have of it
            return sum(self.gradients[device, at][what] for at in self.shape.ties[what[1]].stages)
        return self.gradients[device, stage][what]


def right(plan: StepPlan, chance: random.Random, expected: dict[int, Gradients]) -> bool:
    """Whether the plan gives what one device would, in a random order that its deps allow."""
    run = Run(plan)
    missing = {task.id: len(set(task.deps)) for task in plan.tasks}
    followers: dict[int, list[Task]] = defaultdict(list)
    for task in plan.tasks:
        for dep in set(task.deps):
            followers[dep].append(task)
    ready = [task for task in plan.tasks if not task.deps]
    try:
        while ready:
            task = ready.pop(chance.randrange(len(ready)))
            run.take(task)
            for follower in followers[task.id]:
                missing[follower.id] -= 1
                if not missing[follower.id]:
                    ready.append(follower)
    except Lacking:
        return False
    return run.updated == expected and not any(missing.values())
