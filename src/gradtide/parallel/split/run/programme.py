"""What one device does in a step, looked up once for all steps of a plan."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gradtide.parallel.split.cut.local import LocalStage, ShardExchange
from gradtide.parallel.split.run.held import DeviceStage
from gradtide.parallel.split.units import Chain
from gradtide.schedule.step.build.transfers import Handover, handovers, sends_back, share_of
from gradtide.schedule.step.model import StepPlan, Task

__all__ = ["DeviceProgramme", "exchanges_of"]

Side = tuple[bool, int, int]  # (back, stage, micro)


@dataclass(frozen=True, eq=False)
class DeviceProgramme:
    """The tasks of one device, and what goes from stage to stage there."""

    plan: StepPlan
    device: int
    chain: Chain
    stages: Sequence[DeviceStage]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        return self.plan.of_device(self.device)

    @cached_property
    def forward_tasks(self) -> tuple[Task, ...]:
        """Those of a forward without a backward."""
        return tuple(t for t in self.tasks if t.kind in ("forward", "message", "exchange") and not t.back)

    @property
    def last_stage(self) -> int:
        return len(self.plan.shape.stages) - 1

    @cached_property
    def seers(self) -> tuple[int, ...]:
        """The devices that see a loss: of each copy of the last stage with a sample, one."""
        stage = self.plan.shape.stages[-1]
        firsts = {stage.device(copy, 0) for copy in range(stage.copies)}
        return tuple(sorted({task.devices[0] for task in self._last_forwards} & firsts))

    @cached_property
    def seen_here(self) -> int:
        """How many parts of a batch this device sees the loss of."""
        here = {task.micro for task in self._last_forwards if task.devices[0] == self.device}
        return len(here) if self.device in self.seers else 0

    @property
    def _last_forwards(self) -> list[Task]:
        return [task for task in self.plan.tasks if task.kind == "forward" and task.stage == self.last_stage]

    @cached_property
    def last_work(self) -> int:
        """The last task here that is no sum, norm or update: sums after it have nothing to run beside."""
        kinds = ("sum", "norm", "update")
        return max((task.id for task in self.tasks if task.kind not in kinds), default=-1)

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The samples (first, last) that a loss is taken of at a time, on all devices."""
        return tuple(sorted({(task.first, task.last) for task in self._last_forwards}))

    @cached_property
    def alone(self) -> frozenset[int]:
        """Stages here whose forward needs no other device and changes nothing that stays."""
        quiet = [s for s in self.stages if not (s.local.buffers or s.local.shared_norms or self.into[s.number])]
        return frozenset(stage.number for stage in quiet)

    @cached_property
    def by_number(self) -> dict[int, DeviceStage]:
        return {stage.number: stage for stage in self.stages}

    @cached_property
    def leaving(self) -> dict[int, frozenset[str]]:
        """Of each stage here, what other stages read; of the last one, what the model returns."""
        found: dict[int, set[str]] = {stage.number: set() for stage in self.stages}
        for crossing in self.plan.shape.crossings:
            if crossing.source in found:
                found[crossing.source].update(crossing.values)
        if self.last_stage in found:
            found[self.last_stage].update(self.chain.outputs)
        return {stage: frozenset(names) for stage, names in found.items()}

    @cached_property
    def inputs(self) -> dict[int, tuple[str, ...]]:
        """The model's inputs that each stage here reads."""
        found = {}
        for stage in self.stages:
            wanted = _reads(stage.local) | self.leaving[stage.number]
            found[stage.number] = tuple(name for name in self.chain.inputs if name in wanted)
        return found

    @cached_property
    def wanted_after(self) -> dict[tuple[int, int], frozenset[str]]:
        """What is read after each segment of each stage, here or elsewhere."""
        found = {}
        for stage in self.stages:
            wanted = self.leaving[stage.number] | {exchange.value for exchange in stage.local.after}
            for number in reversed(range(len(stage.local.segments))):
                found[stage.number, number] = frozenset(wanted)
                segment = stage.local.segments[number]
                wanted = wanted | {*segment.reads, *(exchange.value for exchange in segment.before)}
        return found

    @cached_property
    def into(self) -> dict[int, tuple[int, ...]]:
        """The crossings that lead to each stage here."""
        crossings = list(enumerate(self.plan.shape.crossings))
        return {s.number: tuple(n for n, c in crossings if c.target == s.number) for s in self.stages}

    @cached_property
    def back_into(self) -> dict[int, tuple[int, ...]]:
        """The crossings that bring each stage here gradients, the latest reader's first."""
        shape, found = self.plan.shape, {}
        for stage in self.stages:
            leading = [(c.target, n) for n, c in enumerate(shape.crossings) if c.source == stage.number]
            wanted = [n for _, n in sorted(leading, reverse=True) if sends_back(shape, shape.crossings[n])]
            found[stage.number] = tuple(wanted)
        return found

    @cached_property
    def _handovers(self) -> dict[tuple[bool, int, int], tuple[Handover, ...]]:
        """By (back, crossing, micro): those that begin here."""
        shape, found = self.plan.shape, {}
        for number, crossing in enumerate(shape.crossings):
            for micro in range(len(shape.micro_batches)):
                for back in (False, True) if sends_back(shape, crossing) else (False,):
                    every = handovers(shape, crossing, micro, back)
                    found[back, number, micro] = tuple(one for one in every if one.source == self.device)
        return found

    def staying(self, back: bool, crossing: int, micro: int) -> list[Handover]:
        """What goes from one stage here to another one here."""
        return [one for one in self._handovers.get((back, crossing, micro), ()) if one.target == self.device]

    @cached_property
    def leaves(self) -> Counter[Side]:
        """How often something of a stage and micro-batch leaves it, to here or to elsewhere."""
        found: Counter[Side] = Counter()
        for (back, number, micro), several in self._handovers.items():
            crossing = self.plan.shape.crossings[number]
            found[back, crossing.target if back else crossing.source, micro] += len(several)
        return found

    def share(self, stage: int, micro: int) -> tuple[int, int]:
        return share_of(self.plan.shape, stage, self.by_number[stage].copy, micro)


def exchanges_of(stage: DeviceStage, segment: int) -> Sequence[ShardExchange]:
    """Before a segment; their number: those that close the stage."""
    segments = stage.local.segments
    return segments[segment].before if segment < len(segments) else stage.local.after


def _reads(local: LocalStage) -> set[str]:
    return {name for one in local.segments for name in (*one.reads, *(exchange.value for exchange in one.before))}
