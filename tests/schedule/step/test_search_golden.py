"""Figures that others published."""

import pytest
from random_costs import alike, wired

from gradtide.schedule.step.choice.wires import StepDevices
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.score import score

# Huang et al., "GPipe" (2019), Table 2: throughput of AmoebaNet-D on K accelerators with M micro-batches, over that of
# K = 2 with M = 1 (of which the ideal is 1: one micro-batch leaves all accelerators but one idle).
GPIPE = {
    (2, 1): 1.0,
    (4, 1): 1.13,
    (8, 1): 1.38,
    (2, 4): 1.07,
    (4, 4): 1.26,
    (8, 4): 1.72,
    (2, 32): 1.21,
    (4, 32): 1.84,
    (8, 32): 3.48,
}


def ideal(stages, micro_batches):
    """Times as fast as one device, by our closed form of equal stages on free wires."""
    costs = alike(8, samples=32)
    each = 8 // stages
    cut = tuple(Stage(at * each, (at + 1) * each, (at,)) for at in range(stages))
    layout = Layout(tuple(unit.name for unit in costs.units), cut, micro_batches, "gpipe")
    return 8 * 3.0 * 32 / score(layout, costs, StepDevices(wired(8, 1e30, 0.0))).seconds


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 4, 32])
def test_the_closed_form_of_equal_stages_is_the_papers_ideal(stages, micro_batches):
    expected = stages * micro_batches / (micro_batches + stages - 1)
    assert ideal(stages, micro_batches) == pytest.approx(expected, rel=1e-9)


def test_gpipes_throughput_with_32_micro_batches_is_below_the_ideal_and_in_its_order():
    published = [GPIPE[stages, 32] for stages in (2, 4, 8)]
    ours = [ideal(stages, 32) for stages in (2, 4, 8)]
    assert all(measured < bound for measured, bound in zip(published, ours, strict=True))
    assert published == sorted(published)
    assert ours == sorted(ours)
