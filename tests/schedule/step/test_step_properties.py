"""Random steps of every kind: proven, simulated to the end, and equal to one device that does it all."""

import random

import pytest
from step_oracle import right, wanted
from step_shapes import mixed, random_shape

from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.predict import simulate_step
from gradtide.schedule.step.proof import verify_step
from gradtide.topology.presets import preset

SHAPES = 120


def check(seed: int) -> None:
    plan = build_step(random_shape(seed))
    proof = verify_step(plan)
    assert min(proof.peak_bytes) >= 0
    run = simulate_step(plan, None)
    assert (run.end_s >= run.start_s).all()
    for task in plan.tasks:
        assert all(run.end_s[dep] <= run.start_s[task.id] + 1e-9 for dep in task.deps)
    assert right(plan, random.Random(seed), wanted(plan)), seed


def test_random_steps_are_proven_and_give_what_one_device_gives():
    for seed in range(SHAPES):
        check(seed)


@pytest.mark.slow
def test_many_more_random_steps():
    for seed in range(SHAPES, 100 * SHAPES):
        check(seed)


def test_random_steps_end_on_real_wires():
    topology = preset("ethernet-cluster:3x4@25")
    names = [node.name for node in topology.nodes if node.kind == "device"]
    for seed in range(40):
        shape = random_shape(seed)
        count = 1 + max(device for stage in shape.stages for device in stage.devices)
        plan = build_step(shape, names[:count])
        assert simulate_step(plan, topology).seconds >= simulate_step(plan, None).seconds * (1 - 1e-9)


def test_copies_shards_skips_ties_and_exchanges_together():
    plan = build_step(mixed())
    verify_step(plan)
    assert right(plan, random.Random(1), wanted(plan))
