"""Plays a step with one slot a lane: a device does one thing after the other, messages wait for their slot.

A message is begun when its source gets to it and moves once its lane's slot is free; its source goes on meanwhile. The
target takes it when it gets to a task that depends on it, and with it whatever came before it on that lane. Sums are
taken in the background, in order. Whoever can't go on at the end waits for ever.
"""

from collections import defaultdict, deque

from gradtide.errors import ScheduleError
from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.proof.words import who

__all__ = ["play"]

Lane = tuple[int, int, bool]


def play(plan: StepPlan) -> None:
    """Raises ScheduleError if the step never ends."""
    _Play(plan).to_the_end()


class _Play:
    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.queues: dict[tuple[int, bool], deque[Task]] = defaultdict(deque)  # (device, in the background)
        for task in plan.tasks:
            for device in task.devices if task.kind != "message" else task.devices[:1]:
                self.queues[device, task.kind == "sum"].append(task)
        self.done: set[int] = set()
        self.begun: dict[Lane, deque[int]] = defaultdict(deque)  # by their sources, not yet in the slot
        self.slot: dict[Lane, int] = {}
        self.waiting: dict[int, set[tuple[int, bool]]] = defaultdict(set)  # whose queues wait for a task
        for task in plan.tasks:
            for dep in task.deps:
                self.waiting[dep] |= {(device, task.kind == "sum") for device in task.devices}
        self.awake = set(self.queues)

    def to_the_end(self) -> None:
        while self.awake:
            device, background = self.awake.pop()
            while self._step(self.queues[device, background]):
                pass
        stuck = [queue[0] for queue in self.queues.values() if queue]
        if stuck:
            first = min(stuck)
            why = next((dep for dep in first.deps if dep not in self.done), None)
            waits = f"waits for task {why}" if why is not None else "waits for its other members"
            raise ScheduleError(f"{who(first)}: never begins, it {waits}; {len(stuck)} devices stand still")

    def _step(self, queue: deque[Task]) -> bool:
        """Whether the first task of a queue could be done."""
        if not queue:
            return False
        task = queue[0]
        if task.kind == "message":
            if not all(dep in self.done for dep in task.deps):
                return False
            lane = (task.devices[0], task.devices[1], task.back)
            self.begun[lane].append(task.id)
            self._fill(lane)
            queue.popleft()
            self.awake |= self.waiting[task.id]
            return True
        heads = [self.queues[member, task.kind == "sum"] for member in task.devices]
        if not all(head and head[0].id == task.id for head in heads):
            return False
        self._take(task)
        if not all(dep in self.done for dep in task.deps):
            return False
        for head in heads:
            head.popleft()
        self.done.add(task.id)
        self.awake |= self.waiting[task.id] | {(member, task.kind == "sum") for member in task.devices}
        return True

    def _fill(self, lane: Lane) -> None:
        if lane not in self.slot and self.begun[lane]:
            self.slot[lane] = self.begun[lane].popleft()

    def _take(self, task: Task) -> None:
        """Empties the lanes of the messages that a task depends on, up to these."""
        for dep in task.deps:
            message = self.plan.tasks[dep]
            if message.kind == "message" and message.devices[1] in task.devices:
                lane = (message.devices[0], message.devices[1], message.back)
                while dep not in self.done and lane in self.slot:
                    self.done.add(self.slot.pop(lane))
                    self._fill(lane)
