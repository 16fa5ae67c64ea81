"""Pictures of steps: everything that happens is in them, and the same step gives the same bytes."""

import json
import re

import pytest
from step_shapes import mixed, pipeline

from gradtide.draw.step import Arrow, Bar, draw_bars
from gradtide.errors import OutputError
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.pictures import draw_step, step_timeline, step_title
from gradtide.schedule.step.predict import simulate_step
from gradtide.topology.model import Link, Node, NodeKind, Topology

NAMES = ("first", "second", "third", "fourth")
WIRED = Topology(
    "pairs",
    tuple(Node(name, NodeKind.DEVICE) for name in NAMES),
    tuple(Link(a, b, 100.0, 0.01) for a in NAMES for b in NAMES if a != b),
)


def test_a_step_is_drawn_with_devices_stages_numbers_and_what_idles(tmp_path):
    plan = build_step(mixed(), NAMES)
    run = simulate_step(plan, WIRED)
    draw_step(plan, run, tmp_path / "step.svg")
    draw_step(plan, run, tmp_path / "again.svg")
    text = (tmp_path / "step.svg").read_text()
    assert text == (tmp_path / "again.svg").read_text()
    for wanted in (*NAMES, "stage 2", "exchange of shards", "sum of gradients", "idle", step_title(plan)):
        assert f"{wanted} -->" in text or f" {wanted}" in text or f">{wanted}" in text, wanted


def test_a_picture_says_what_its_numbers_are_and_of_one_micro_batch_has_none(tmp_path):
    texts = []
    for micros in (3, 1):
        plan = build_step(pipeline(2, micros), NAMES[:2])
        draw_step(plan, simulate_step(plan, WIRED), tmp_path / "it.svg")
        texts.append(re.findall(r"<!-- (.*?) -->", (tmp_path / "it.svg").read_text()))
    assert {"0", "1", "2", "number of the micro-batch, from 0"} <= set(texts[0])
    assert "number of the micro-batch, from 0" not in texts[1]
    assert texts[1].count("0") == 1  # of the axis


@pytest.mark.parametrize("kind", ["png"])
def test_a_step_in_halves_is_drawn_in_other_formats(tmp_path, kind):
    plan = build_step(pipeline(2, 3, "zero-bubble"))
    draw_step(plan, simulate_step(plan, None), tmp_path / f"step.{kind}")
    assert (tmp_path / f"step.{kind}").stat().st_size > 5_000


def test_a_title_counts_in_plain_words():
    assert step_title(build_step(pipeline(2, 1))) == "1f1b: 2 stages on 2 devices, 1 micro-batch of 1 sample"
    assert step_title(build_step(mixed())) == "1f1b: 3 stages on 4 devices, 3 micro-batches of 0 to 3 samples"


def test_a_step_too_large_for_a_picture_is_refused(tmp_path):
    bars = [Bar(0, "forward", 0, "0", 0.0, 1.0)]
    draw_bars(tmp_path / "one.svg", [("a", "")], bars, [Arrow(0, 0, False, 0.0, 0.5)] * 1000)
    with pytest.raises(OutputError, match="the step has 65 devices and 1 tasks; a picture holds 64"):
        draw_bars(tmp_path / "many.svg", [("a", "")] * 65, bars)


def test_the_timeline_has_a_row_for_each_device_and_each_pair_that_talks(tmp_path):
    plan = build_step(pipeline(2, 2), NAMES[:2])
    run = simulate_step(plan, WIRED)
    step_timeline(plan, run, tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows == {"first → computes", "second → computes", "first → second", "second → first"}
    assert sum(event["ph"] == "X" for event in events) == len(plan.tasks)
