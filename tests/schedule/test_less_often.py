"""What meeting less often, and parts by speed, are predicted to save."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gradtide.cli.app import app
from gradtide.errors import ConfigError, GradtideError
from gradtide.schedule.plan import plan
from gradtide.schedule.predict.less_often import forecast_step
from gradtide.schedule.predict.unequal_speeds import forecast_speeds


@pytest.mark.quick
def test_a_window_pays_once_for_all_its_steps():
    found = forecast_step(0.030, 0.600, 80e6, 50, overlap=False)
    assert found.together_s == pytest.approx(0.630)
    assert found.local_s == pytest.approx(0.042)
    assert found.local_bytes == pytest.approx(1.6e6)
    assert found.is_worth_it
    assert found.explain() == (
        "synchronising takes 95 % of a step (630 ms): Local(50) 42 ms and 1.6 MB a step instead of 630 ms and 80 MB, "
        "15.00 times as fast"
    )


def test_gradients_that_leave_in_backward_have_two_thirds_of_the_computation():
    assert forecast_step(0.030, 0.015, 1e6, 5, overlap=True).together_s == pytest.approx(0.030)
    assert forecast_step(0.030, 0.050, 1e6, 5, overlap=True).together_s == pytest.approx(0.060)


def test_what_is_hardly_waited_for_is_not_worth_saving():
    found = forecast_step(0.100, 0.003, 80e6, 50, overlap=False)
    assert not found.is_worth_it
    assert found.explain().startswith("synchronising takes 3 % of a step (103 ms), so meeting less often is not worth")
    hidden = forecast_step(0.100, 0.030, 80e6, 2, overlap=True)  # a window of 2 waits for more than overlap leaves
    assert hidden.local_s > hidden.together_s
    assert not hidden.is_worth_it


def test_to_meet_at_every_step_is_to_step_together_without_overlap():
    found = forecast_step(0.2, 0.1, 1e6, 1, overlap=False)
    assert found.local_s == found.together_s
    assert found.local_bytes == found.together_bytes


@pytest.mark.quick
def test_parts_by_speed_are_done_together():
    found = forecast_speeds([1, 1, 0.3])
    assert found.even == pytest.approx(1 / 0.3)
    assert found.balanced == pytest.approx(3 / 2.3)
    assert found.gain == pytest.approx(2.3 / 0.9)
    assert sum(found.shares) == pytest.approx(1)


@given(
    st.lists(st.floats(0.05, 4.0), min_size=2, max_size=4).flatmap(
        lambda speeds: st.tuples(st.just(speeds), st.integers(len(speeds), 24))
    )
)
def test_whole_samples_are_dealt_as_well_as_they_can_be(drawn):
    speeds, batch = drawn
    found = forecast_speeds(speeds, batch)
    assert sum(found.shares) == batch
    assert min(found.shares) >= 1
    rest = itertools.product(range(1, batch + 1), repeat=len(speeds) - 1)
    cuts = ((*cut, batch - sum(cut)) for cut in rest if sum(cut) < batch)
    best = min(max(count / speed for count, speed in zip(cut, speeds, strict=True)) for cut in cuts)
    assert found.balanced * batch / len(speeds) == pytest.approx(best, rel=1e-9)


def test_what_makes_no_sense_is_refused():
    for wrong in ([1], [1, 0], [1, -1], [1, float("inf")]):
        with pytest.raises(ConfigError, match="two numbers or more"):
            forecast_speeds(wrong)
    with pytest.raises(ConfigError, match="only 1 samples"):
        forecast_speeds([1, 1], 1)
    with pytest.raises(ConfigError, match="every 0 steps"):
        forecast_step(1.0, 1.0, 1.0, 0, overlap=False)
    with pytest.raises(ConfigError, match="computes for some time"):
        forecast_step(0.0, 1.0, 1.0, 2, overlap=False)


# --- the command ---


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_plan_says_what_meeting_less_often_saves():
    best = plan("ethernet-cluster:2x1@1", "80MB").best
    asked = ["ethernet-cluster:2x1@1", "--size", "80MB", "--every", "50", "--compute", "30ms"]
    data = json.loads(run(*asked, "--no-overlap", "--json"))["local"]
    assert data["together_s"] == pytest.approx(0.030 + best.seconds)
    assert data["local_s"] == pytest.approx(0.030 + best.seconds / 50)
    assert (data["together_bytes"], data["local_bytes"]) == (best.wire_bytes, best.wire_bytes / 50)
    text = run(*asked)
    assert "met every 50 steps" in text
    assert "synchronising takes" in text


def test_the_plan_says_what_parts_by_speed_save_with_or_without_a_topology():
    text = run("--speeds", "1,1,0.3")
    assert "2.56 times as fast" in text
    data = json.loads(run("--speeds", "1,1,0.3", "--batch", "64", "--compute", "30ms", "--json"))["balance"]
    assert data["shares"] == [28, 28, 8]
    assert data["even_s"] == pytest.approx(0.030 * 22 / (64 / 3) / 0.3)
    both = run("star:3", "--size", "80MB", "--every", "50", "--compute", "30ms", "--speeds", "1,1,0.3")
    assert "met every 50 steps" in both
    assert "parts by speed" in both


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["ring:4", "--size", "1MB", "--every", "50"], "--every needs --compute"),
        (["ring:4", "--size", "1MB", "--every", "x", "--compute", "1ms"], "--every is a number of steps"),
        (["ring:4", "--size", "1MB", "--every", "0", "--compute", "1ms"], "every 0 steps makes no sense"),
        (["ring:4", "--size", "1MB", "--speeds", "1,2"], "4 devices but 2 speeds"),
        (["--speeds", "1,fast"], "speeds are two numbers or more"),
        (["ring:4", "--sizes", "1KB..1MB", "--every", "2", "--compute", "1ms"], "go with one size"),
        (["--every", "2", "--compute", "1ms"], "needs a topology"),
        (["ring:4", "--size", "1MB", "--batch", "8"], "--batch goes with --speeds"),
        (["ring:4", "--size", "1MB", "--compute", "8ms"], "--compute goes with --every or --speeds"),
        (["ring:4", "--size", "1MB", "--no-overlap"], "--no-overlap goes with --every"),
        (["ring:4", "--size", "1MB", "--collective", "broadcast", "--every", "2", "--compute", "1ms"], "all_reduce"),
    ],
)
def test_a_mistake_is_one_line(asked, says):
    with pytest.raises(GradtideError, match=says):
        CliRunner().invoke(app, ["plan", *asked], catch_exceptions=False)
