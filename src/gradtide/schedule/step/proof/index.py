"""Every task of a plan by what it does. What is done twice, or by a device that can't, is refused here."""

from collections import defaultdict
from typing import TypeVar, get_args

from gradtide.errors import ScheduleError
from gradtide.schedule.step.model import StepPlan, Task, TaskKind
from gradtide.schedule.step.proof.words import who

__all__ = ["COMPUTES", "Index"]

COMPUTES = ("forward", "backward", "inputs", "weights")
Key = TypeVar("Key")


class Index:
    """Tasks by kind and place."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan, self.shape = plan, plan.shape
        self.computes: dict[tuple[str, int, int, int, int], Task] = {}  # (kind, stage, segment, micro, device)
        self.exchanges: dict[tuple[int, int, int, int, tuple[int, ...], bool], Task] = {}
        self.messages: dict[tuple[int, int, bool, int], list[Task]] = defaultdict(list)  # by target device
        self.sums: dict[int, Task] = {}
        self.updates: dict[int, Task] = {}
        self.norms: list[Task] = []
        for place, task in enumerate(plan.tasks):
            self._check(place, task)
            self._file(task)

    def _check(self, place: int, task: Task) -> None:
        """Ids are places and deps come earlier: so the list itself is an order that lets everything end."""
        if task.id != place:
            raise ScheduleError(f"{who(task)}: is number {place} in the list; ids must be places in it")
        if task.kind not in get_args(TaskKind):
            raise ScheduleError(f"{who(task)}: no task is called so; known are {', '.join(get_args(TaskKind))}")
        known = range(len(self.plan.devices))
        if not task.devices or len(set(task.devices)) != len(task.devices) or not set(task.devices) <= set(known):
            raise ScheduleError(f"{who(task)}: needs different devices of {len(known)}")
        for dep in task.deps:
            if not 0 <= dep < place:
                raise ScheduleError(f"{who(task)}: depends on task {dep}, which is not before it in the list")
        if not (task.seconds >= 0 and task.bytes >= 0):
            raise ScheduleError(f"{who(task)}: takes {task.seconds} s and {task.bytes} bytes; neither can be below 0")
        stages, micros = len(self.shape.stages), len(self.shape.micro_batches)
        placed = task.kind in (*COMPUTES, "message", "exchange")
        if placed and not (0 <= task.stage < stages and 0 <= task.micro < micros):
            raise ScheduleError(f"{who(task)}: has {stages} stages and {micros} micro-batches; no such place")

    def _file(self, task: Task) -> None:
        match task.kind:
            case "message":
                self._check_message(task)
                self.messages[task.number, task.micro, task.back, task.devices[1]].append(task)
            case "exchange":
                members = tuple(sorted(task.devices))
                self._once(
                    self.exchanges, (task.stage, task.segment, task.number, task.micro, members, task.back), task
                )
            case "sum":
                self._once(self.sums, task.number, task)
            case "norm":
                self.norms.append(task)
            case "update":
                self._alone(task)
                self._once(self.updates, task.devices[0], task)
            case _:
                self._alone(task)
                key = (task.kind, task.stage, task.segment, task.micro, task.devices[0])
                self._once(self.computes, key, task)

    def _check_message(self, task: Task) -> None:
        if len(task.devices) != 2 or not 0 <= task.number < len(self.shape.crossings):
            raise ScheduleError(f"{who(task)}: needs a source, a target and one of the crossings")
        crossing = self.shape.crossings[task.number]
        if task.stage != (crossing.target if task.back else crossing.source):
            raise ScheduleError(f"{who(task)}: crossing {task.number} is not sent by this stage in this direction")

    def _alone(self, task: Task) -> None:
        if len(task.devices) != 1:
            raise ScheduleError(f"{who(task)}: is one device's, not several")

    def _once(self, found: dict[Key, Task], key: Key, task: Task) -> None:
        if key in found:
            raise ScheduleError(f"{who(task)}: does what task {found[key].id} has done already")
        found[key] = task

    def backwards(self, stage: int, segment: int, micro: int, device: int) -> tuple[Task, Task] | None:
        """(what gives the gradients of what was read, what adds to those of parameters), or None."""
        whole = self.computes.get(("backward", stage, segment, micro, device))
        if whole is not None:
            return whole, whole
        halves = [self.computes.get((kind, stage, segment, micro, device)) for kind in ("inputs", "weights")]
        return (halves[0], halves[1]) if halves[0] is not None and halves[1] is not None else None
