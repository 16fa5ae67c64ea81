"""build_step: a shape becomes a whole training step."""

from collections import Counter
from collections.abc import Sequence

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build.checks import check_shape, device_count
from gradtide.schedule.step.build.expand import Expansion
from gradtide.schedule.step.build.finish import add_sum, add_updates, stages_of, sums_of
from gradtide.schedule.step.build.merge import merge
from gradtide.schedule.step.build.orders import ORDERS
from gradtide.schedule.step.build.rows import StageTurn, rows_of
from gradtide.schedule.step.model import StepPlan
from gradtide.schedule.step.shape import StepShape

__all__ = ["build_step"]


def build_step(
    shape: StepShape, device_names: Sequence[str] | None = None, orders: Sequence[Sequence[StageTurn]] | None = None
) -> StepPlan:
    """The step of this shape in its order: who computes, sends, exchanges and adds up what, and after what.

    `orders` are turns of each row that come from elsewhere; the shape's order then says only whether backward is in two
    halves, as in zero-bubble.
    """
    check_shape(shape)
    if shape.order not in ORDERS:
        raise ScheduleError(f"no order is called {shape.order!r}; known are {', '.join(ORDERS)}")
    names = _names(shape, device_names)
    if orders is None:
        orders = ORDERS[shape.order](rows_of(shape), len(shape.micro_batches))
    turns = merge(shape, orders)
    tasks, sums = Expansion(shape), sums_of(shape)
    adds = "weights" if shape.order == "zero-bubble" else "backward"
    left = Counter(turn.stage for turn in turns if turn.kind == adds)
    added: dict[int, int] = {}
    for turn in turns:
        tasks.take(turn)
        left[turn.stage] -= turn.kind == adds
        for number, summed in enumerate(sums):  # as early as can be: they overlap with what is left of backward
            if number not in added and not any(left[stage] for stage in stages_of(shape, summed)):
                added[number] = add_sum(tasks, number, summed)
    add_updates(tasks, sums, added, len(names))
    return StepPlan(shape, names, tuple(tasks.tasks), sums)


def _names(shape: StepShape, names: Sequence[str] | None) -> tuple[str, ...]:
    count = device_count(shape)
    if names is None:
        return tuple(f"device {number}" for number in range(count))
    if len(names) != count or len(set(names)) != count:
        raise ScheduleError(f"the step needs {count} devices of different names, not {', '.join(names) or 'none'}")
    return tuple(names)
