"""What explain() says of seconds and bytes, from events on a clock of the test's own."""

import pytest
import torch
from torch import nn

import gradtide
from gradtide.events import GradientsReady, GradientsSynchronised, ParametersUpdated, Waiting
from gradtide.parallel.pace import StepPace
from gradtide.sync import Job, Local


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def paced(steps, every, own_s=0.02, meeting_s=0.5):
    """`every` None: all steps are taken together."""
    clock, seen = Clock(), []
    pace = StepPace(seen.append, clock)
    for step in range(1, steps + 1):
        clock.now_s += own_s
        pace.observe(GradientsReady())
        if every is None:
            pace.observe(Waiting())
            clock.now_s += meeting_s
            pace.observe(GradientsSynchronised(80_000_000))
        else:
            pace.observe(GradientsSynchronised(0))
            if step % every == 0:
                pace.observe(Waiting())
                clock.now_s += meeting_s
                pace.observe(GradientsSynchronised(80_000_000))
        pace.observe(ParametersUpdated())
    return pace, seen


@pytest.mark.quick
def test_a_step_is_told_from_what_synchronising_takes_of_it():
    pace, seen = paced(20, None)
    assert len(seen) == 80  # all were passed on
    (said,) = pace.explain(None)
    assert said == (
        "measured so far, waiting for others included: synchronising takes 96 % of a step (520 ms): Local(50) 30 ms "
        "and 1.6 MB a step instead of 520 ms and 80 MB, 17.33 times as fast"
    )


def test_local_steps_are_measured_apart_from_meetings():
    pace, _ = paced(25, 10)
    found = pace.forecast(10)
    assert (found.alone_s, found.together_s, found.local_s) == pytest.approx((0.02, 0.52, 0.07))
    (said,) = pace.explain(10)
    assert "20 ms a step and 500 ms a meeting, so 70 ms and 8 MB a step" in said
    assert "taken together it would be 520 ms at most, and 80 MB" in said


def test_a_second_wait_until_all_have_stepped_counts_too():
    clock = Clock()
    pace = StepPace(lambda event: None, clock)
    for _ in range(9):
        for event in (GradientsReady(), Waiting(), GradientsSynchronised(10), Waiting(), ParametersUpdated()):
            pace.observe(event)
            clock.now_s += 1.0
    found = pace.forecast(None)
    # Between the sum and the second wait, and from the step to the next backward's end, it works: a second each.
    assert (found.alone_s, found.together_s) == (2.0, 5.0)


def test_what_is_hardly_waited_for_is_said_to_be_not_worth_it():
    assert "not worth it" in paced(20, None, own_s=0.1, meeting_s=0.002)[0].explain(None)[0]
    assert "not worth local steps" in paced(20, 5, own_s=0.1, meeting_s=0.002)[0].explain(5)[0]


def test_nothing_is_said_before_it_is_known():
    assert paced(3, None)[0].explain(None) == []
    assert paced(9, 10)[0].explain(10) == []  # nobody has met


def test_a_model_tells_its_pace():
    net = nn.Linear(2, 2)
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), Local(2), job=Job())
    for _ in range(8):
        model(torch.ones(4, 2)).sum().backward()
        model.step()
    assert "measured so far" in model.explain()
    assert "a meeting" in model.explain()
