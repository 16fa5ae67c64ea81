"""torch's own pipeline schedules, proven and simulated as steps of ours."""

import sys
from pathlib import Path

import pytest

from gradtide.errors import ConfigError, ScheduleError
from gradtide.parallel.split.torch_schedules import TORCH_SCHEDULES, rival, torch_order
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.planned import plan_split
from gradtide.schedule.step.predict import simulate_step
from gradtide.schedule.step.proof import verify_step
from gradtide.schedule.step.shape import Crossing, Seconds, SegmentShape, StageShape, StepShape

sys.path.insert(0, str(Path(__file__).parents[2] / "schedule" / "step"))
from random_costs import random_model, wired


def step_of(order, micro_batches, stages_a_rank):
    """Stages that are all alike; a rank takes 1 s forward and 2 s back for a micro-batch."""
    segment = SegmentShape(
        forward=Seconds(0.0, 1 / stages_a_rank), backward=Seconds(0.0, 2 / stages_a_rank), saved_bytes=1 / stages_a_rank
    )
    stages = tuple(StageShape((rank,), 1, (segment,), gradient_bytes=1) for rank in order.ranks)
    crossings = tuple(Crossing(at, at + 1, (f"v{at}",), 1.0, 1.0) for at in range(len(stages) - 1))
    return build_step(StepShape(stages, crossings, (1,) * micro_batches, order.order), None, order.turns)


@pytest.mark.parametrize("name", TORCH_SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8)])
def test_torchs_schedules_are_right(name, ranks, micro_batches):
    each = TORCH_SCHEDULES[name] or 2
    plan = step_of(torch_order(name, ranks, each, micro_batches), micro_batches, each)
    verify_step(plan)
    seconds = simulate_step(plan, None).seconds
    bubble = {"GPipe": 3.0, "1F1B": 3.0, "Interleaved1F1B": 1.5, "LoopedBFS": 1.5}.get(name, 0.5)
    assert seconds == pytest.approx(3 * micro_batches + bubble * (ranks - 1), rel=1e-9)


def test_a_rival_stands_beside_a_plan():
    plan = plan_split(random_model(3, 16, samples=64), 4, wired(4))
    found = {name: rival(name, plan) for name in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")}
    assert found["Interleaved1F1B"].name == "torch:Interleaved1F1B"
    assert all(row.seconds >= plan.bound_seconds for row in found.values())
    ours = next(row for row in plan.table if row.name == "layers alone")
    assert ours.seconds <= found["1F1B"].seconds * (1 + 1e-9)


def test_what_torch_can_not_do_is_said():
    with pytest.raises(ScheduleError, match="sends to the next stage alone"):
        rival("Interleaved1F1B", plan_split(random_model(1, 8, skips=True), 4, wired(4), micro_batches=4))
    with pytest.raises(ScheduleError, match="does not add up the gradients of shared, which stages share"):
        rival("1F1B", plan_split(random_model(5, 6, tied=True), 4, wired(4), micro_batches=4))
    with pytest.raises(ConfigError, match="torch has no schedule 'Interleaved1F1C'; did you mean 'Interleaved1F1B'"):
        torch_order("Interleaved1F1C", 2, 2, 4)
    with pytest.raises(ScheduleError, match="torch:Interleaved1F1B refuses 5 micro-batches on 2 devices"):
        torch_order("Interleaved1F1B", 2, 2, 5)
    with pytest.raises(ConfigError, match="takes 2 stages a device, not 1"):
        torch_order("ZBVZeroBubble", 2, 1, 4)
