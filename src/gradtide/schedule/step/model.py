"""A whole training step as data: who computes, sends, exchanges and adds up what, in which order."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gradtide.schedule.step.shape import StepShape

__all__ = ["StepPlan", "Sum", "Task", "TaskKind"]

# forward, backward  one device computes a segment for the samples of a micro-batch that are its copy's
# inputs, weights    backward in two: gradients of what was read, and gradients of parameters (zero-bubble)
# message            what a stage made goes to another one, or its gradient back
# exchange           the shards of a copy exchange a value, or its gradient
# sum                the gradients of parameters that several devices hold are added up
# norm               all devices add up what their gradients' norm is made of
# update             one device takes its optimizer's step
TaskKind = Literal["forward", "backward", "inputs", "weights", "message", "exchange", "sum", "norm", "update"]


class Task(NamedTuple):
    """One thing that one device does, or several do together. It may begin when every task in `deps` is done.

    A device computes and exchanges in the order of its tasks' ids, one after the other. Beside that:
    - A message is begun by its source when it comes up there, and taken by its target when a task that depends on it
      comes up (with all that came before it on its lane: source, target, direction). A lane has one slot.
    - Sums run in the background, in the order of their ids on every member; what depends on one waits for it.
    Whoever does all of it strictly in the order of ids, messages at both ends, ends too: it only waits longer.
    """

    id: int
    kind: TaskKind
    devices: tuple[int, ...]  # of a message: (source, target); of an exchange or a sum: the members, in rank order
    stage: int = -1  # of a message: the stage that sends
    segment: int = -1  # of an exchange: the segment that it comes before (their number: the one that closes the stage)
    micro: int = -1
    first: int = 0  # samples of the batch, first to last - 1
    last: int = 0
    back: bool = False  # of a message or exchange: gradients
    number: int = -1  # of a message: which crossing; of an exchange: which one before its segment; of a sum: which sum
    seconds: float = 0.0  # of computing, on this device; of a message, of handing it over; else of each member
    bytes: float = 0.0  # of a message; that each member of an exchange sends; the size of what is summed
    deps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """Gradients that several devices hold parts of: of a stage's parameters, by its copies; of a tied one, by all."""

    devices: tuple[int, ...]
    bytes: int
    stage: int = -1  # whose parameters
    shard: int = 0
    tie: int = -1  # or which tie


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: tasks in one order that every device's own order follows. Ids are places in it."""

    shape: StepShape
    devices: tuple[str, ...]  # names, as the topology has them
    tasks: tuple[Task, ...]
    sums: tuple[Sum, ...] = ()

    def of_device(self, device: int) -> tuple[Task, ...]:
        """What a device does, in its order."""
        return tuple(task for task in self.tasks if device in task.devices)
