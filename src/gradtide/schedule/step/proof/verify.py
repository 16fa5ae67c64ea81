"""Proves that a step gives one device's gradients, in every order that its deps allow, and that it ends.

1. Index: every dep comes earlier in the list, so the list is an order that the deps allow. Nothing is done twice.
2. Coverage: every segment of every shard computes every sample once, forward and (where it is trained) back.
3. Flow: what reads is ordered by deps after what makes, so every allowed order gives the same numbers. Every sample of
   what crosses between stages comes from exactly one place, there and back.
4. Gradients: additions to one place are ordered; every sum has all its holders, the norm all devices, an update all
   gradients.
5. Lanes: played with one slot a lane, every task gets its turn.
"""

from dataclasses import dataclass

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build.checks import check_shape, device_count
from gradtide.schedule.step.memory import DeviceMemory, memory_of
from gradtide.schedule.step.model import StepPlan
from gradtide.schedule.step.proof.ancestors import unordered
from gradtide.schedule.step.proof.coverage import find_spans
from gradtide.schedule.step.proof.flow import DataFlow
from gradtide.schedule.step.proof.gradients import gradient_pairs
from gradtide.schedule.step.proof.index import Index
from gradtide.schedule.step.proof.lanes import play
from gradtide.schedule.step.proof.words import who

__all__ = ["StepProof", "verify_step"]


@dataclass(frozen=True, slots=True)
class StepProof:
    """What came out besides "it is right"."""

    memory: tuple[DeviceMemory, ...]  # of each device, at its peak
    steps: int  # tasks on the longest chain of deps
    messages: int
    sent_bytes: float  # by messages and exchanges

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        return tuple(device.total for device in self.memory)


def verify_step(plan: StepPlan, memory_bytes: float | None = None) -> StepProof:
    """Raises ScheduleError, naming the task, unless the step is right (and fits into so much memory a device)."""
    check_shape(plan.shape)
    if len(plan.devices) != device_count(plan.shape) or len(set(plan.devices)) != len(plan.devices):
        raise ScheduleError(f"the step needs {device_count(plan.shape)} devices of different names, not {plan.devices}")
    index = Index(plan)
    spans = find_spans(index)
    pairs = [*DataFlow(index, spans).pairs(), *gradient_pairs(index, spans)]
    _check_order(plan, pairs)
    play(plan)
    memory = memory_of(plan)
    for name, used in zip(plan.devices, memory, strict=True):
        if memory_bytes is not None and used.total > memory_bytes:
            raise ScheduleError(
                f"{name}: needs {used.total:.0f} bytes, but has {memory_bytes:.0f}; cut it smaller, "
                "take more micro-batches or recompute"
            )
    sent = [task for task in plan.tasks if task.kind in ("message", "exchange")]
    bytes_sent = sum(task.bytes * (len(task.devices) if task.kind == "exchange" else 1) for task in sent)
    return StepProof(memory, _longest_chain(plan), sum(task.kind == "message" for task in sent), bytes_sent)


def _check_order(plan: StepPlan, pairs: list[tuple[int, int]]) -> None:
    for earlier, later in unordered(pairs, [task.deps for task in plan.tasks]):
        raise ScheduleError(
            f"{who(plan.tasks[later])}: needs {who(plan.tasks[earlier])}, but no dep says so; add {earlier} to its deps"
        )


def _longest_chain(plan: StepPlan) -> int:
    length: list[int] = []
    for task in plan.tasks:
        length.append(1 + max((length[dep] for dep in task.deps), default=0))
    return max(length, default=0)
