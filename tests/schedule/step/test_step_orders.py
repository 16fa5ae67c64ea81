"""Who computes what when, order by order; and shapes that are refused in one line."""

from dataclasses import replace

import pytest
from step_shapes import pipeline

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.proof import lanes
from gradtide.schedule.step.shape import Crossing, SegmentShape, StageShape, StepShape, Tie


def turns(plan: StepPlan, device: int) -> str:
    """F0 F1 B0 ...: what a device computes, with the stage where it has several."""
    many = len(plan.shape.stages) > len(plan.devices)
    computes = [task for task in plan.of_device(device) if task.segment == 0]
    return " ".join(f"{task.kind[0].upper()}{f'{task.stage}.' if many else ''}{task.micro}" for task in computes)


def test_gpipe_does_all_forwards_first():
    plan = build_step(pipeline(2, 3, "gpipe"))
    assert [turns(plan, device) for device in range(2)] == ["F0 F1 F2 B0 B1 B2"] * 2


def test_1f1b_goes_ahead_by_the_rows_that_follow():
    plan = build_step(pipeline(3, 4, "1f1b"))
    assert [turns(plan, device) for device in range(3)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_interleaved_goes_in_groups_of_as_many_micro_batches_as_rows():
    plan = build_step(pipeline(2, 4, "interleaved", per_row=2))
    assert [turns(plan, device) for device in range(2)] == [
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
    ]


def test_zero_bubble_puts_gradients_of_parameters_off_by_the_row():
    plan = build_step(pipeline(3, 4, "zero-bubble"))
    assert [turns(plan, device) for device in range(3)] == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


@pytest.mark.parametrize("homes", [(0, 1, 0), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2, 0)])
def test_1f1b_with_several_stages_a_row_keeps_no_more_than_stages_follow(homes):
    shape = pipeline(len(homes), 6)
    stages = tuple(replace(stage, devices=(home,)) for stage, home in zip(shape.stages, homes, strict=True))
    plan = build_step(replace(shape, stages=stages))
    for at in range(len(homes)):
        alive = most = 0
        for task in plan.tasks:
            if task.stage == at and task.kind in ("forward", "backward"):
                alive += 1 if task.kind == "forward" else -1
                most = max(most, alive)
        assert most <= len(homes) - at


def test_every_order_adds_gradients_up_in_the_order_of_micro_batches():
    for order in ("gpipe", "1f1b", "interleaved", "zero-bubble"):
        plan = build_step(pipeline(2, 4, order, per_row=2 if order == "interleaved" else 1))
        for stage in range(len(plan.shape.stages)):
            adds = [task.micro for task in plan.tasks if task.stage == stage and task.kind in ("backward", "weights")]
            assert adds == sorted(adds)


def test_a_frozen_stage_has_no_backward_and_gets_no_gradient():
    shape = pipeline(3, 2)
    frozen = replace(shape.stages[0], trained=False, gradient_bytes=0)
    plan = build_step(replace(shape, stages=(frozen, *shape.stages[1:])))
    assert turns(plan, 0) == "F0 F1"
    assert [task for task in plan.tasks if task.back and task.devices[1] == 0] == []
    assert {task.devices for task in plan.tasks if task.kind == "update"} == {(1,), (2,)}


def test_a_copy_without_samples_computes_nothing_but_takes_part_in_sums():
    stage = StageShape((0, 1), 1, (SegmentShape(),), gradient_bytes=4)
    plan = build_step(StepShape((stage,), (), (1,)))
    assert [(task.kind, task.devices) for task in plan.tasks] == [
        ("forward", (1,)),
        ("backward", (1,)),
        ("sum", (0, 1)),
        ("update", (0,)),
        ("update", (1,)),
    ]


def stage(*devices: int, **fields: object) -> StageShape:
    return StageShape(devices, fields.pop("shards", 1), (SegmentShape(),), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (StepShape((), (), (1,)), "one stage or more"),
        (StepShape((stage(0),), (), ()), "micro-batches of 0 samples or more"),
        (StepShape((stage(0, 0),), (), (1,)), "different devices"),
        (StepShape((stage(0, 1, 2, shards=2),), (), (1,)), "3 devices can't be copies of 2 shards"),
        (StepShape((stage(1),), (), (1,)), "device 0 has no stage"),
        (StepShape((stage(0, 1), stage(1, 2)), (), (1,)), "stage 1: shares device 1 with a stage on other devices"),
        (StepShape((stage(0),), (), (1,), speeds=(1.0, 2.0)), "1 devices need 1 speeds"),
        (StepShape((stage(0),), (Crossing(0, 0, ("v",)),), (1,)), "must lead from a stage to a later one"),
        (StepShape((stage(0, 1), stage(2)), (Crossing(0, 1, ("v",), batched=False),), (2,)), "v has no row a sample"),
        (StepShape((stage(0), stage(1, trained=False)), (Crossing(0, 1, ("v",), 1, 1),), (1,)), "awaits a gradient"),
        (StepShape((stage(0, trained=False, gradient_bytes=1),), (), (1,)), "said not to be trained"),
        (StepShape((stage(0),), (), (1,), ties=(Tie("w", (0, 1), 1),)), r"tie w: names stages \(0, 1\) of 1"),
        (StepShape((stage(0, trained=False),), (), (1,), ties=(Tie("w", (0,), 1),)), "leave out a frozen tie"),
        (StepShape((stage(0),), (), (1,), "late"), "no order is called 'late'; known are gpipe, 1f1b"),  # type: ignore
        (pipeline(2, 3, "interleaved", per_row=2), "3 micro-batches can't go in groups of 2 rows; take 2, 4"),
        (pipeline(2, 1, "interleaved", per_row=2), "take 2$"),
        (pipeline(2, 2, "zero-bubble", per_row=2), "needs consecutive stages on each row"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused_in_one_line(shape, why):
    with pytest.raises(ScheduleError, match=why) as refusal:
        build_step(shape)
    assert "\n" not in str(refusal.value)


def test_interleaved_wants_stages_dealt_round_robin():
    shape = pipeline(3, 2, "interleaved")
    stages = tuple(replace(one, devices=(home,)) for one, home in zip(shape.stages, (0, 1, 0), strict=True))
    with pytest.raises(ScheduleError, match=r"needs stages dealt round-robin.*go to rows 0, 1, 0"):
        build_step(replace(shape, stages=stages))


def test_devices_are_named_one_by_one():
    with pytest.raises(ScheduleError, match="needs 2 devices of different names, not a, a"):
        build_step(pipeline(2, 1), ["a", "a"])


def test_a_step_whose_devices_wait_for_each_other_is_seen_to_stand_still():
    tasks = (Task(0, "forward", (0,), 0, 0, 0, deps=(1,)), Task(1, "forward", (1,), 1, 0, 0, deps=(0,)))
    with pytest.raises(ScheduleError, match=r"task 0 .*never begins, it waits for task 1; 2 devices stand still"):
        lanes.play(replace(build_step(pipeline(2, 1)), tasks=tasks))
