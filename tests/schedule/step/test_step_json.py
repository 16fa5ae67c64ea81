"""Layouts and steps as JSON: the same again, and rubbish refused in one line."""

import json
import random

import pytest
from step_shapes import mixed, pipeline, random_shape

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.files import (
    check_layout,
    layout_from_json,
    layout_to_json,
    step_from_json,
    step_to_json,
)
from gradtide.schedule.step.layout import Layout, Stage

LAYOUT = Layout(
    ("conv1", "conv2", "fc6", "fc7"),
    (Stage(0, 2, (0, 1)), Stage(2, 4, (3, 2), shards=2, recompute=True, ways=(("fc6", "columns"), ("fc7", "rows")))),
    micro_batches=8,
    order="gpipe",
)


def test_a_layout_comes_back_as_it_was():
    assert layout_from_json(layout_to_json(LAYOUT)) == LAYOUT


def test_a_step_comes_back_as_it_was():
    for shape in (mixed(), pipeline(2, 2, "zero-bubble"), *(random_shape(seed) for seed in range(10))):
        plan = build_step(shape)
        assert step_from_json(step_to_json(plan)) == plan


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(layout_to_json(LAYOUT)), **fields})


def restaged(**fields: object) -> str:
    first, second = json.loads(layout_to_json(LAYOUT))["stages"]
    return changed(stages=[first, {**second, **fields}])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "my.json: is not JSON"),
        ("[1]", "my.json: needs the field gradtide_layout, which must be 1"),
        ("[" * 100_000, "is not JSON"),
        (changed(gradtide_layout=2), "needs the field gradtide_layout, which must be 1"),
        (changed(speed=3), "unknown field speed; known are units, stages"),
        (changed(micro_batches="8"), 'my.json: micro_batches: must be a whole number, not "8"'),
        (changed(micro_batches=True), "must be a whole number, not true"),
        (changed(micro_batches=0), "needs 1 to 1048576 micro-batches, not 0"),
        (changed(micro_batches=10**30), "out of all measure"),
        (changed(micro_batches=float("inf")), "Infinity is no number"),
        (changed(order="2f2b"), r'order: is "2f2b", but must be one of gpipe, 1f1b'),
        (changed(order=["gpipe"]), r'order: is \["gpipe"\], but must be one of'),
        (changed(units="conv"), "units: must be a list"),
        (changed(units=["a", "a", "b", "c"]), "units of different names"),
        (changed(stages=[]), "no stage has unit conv1"),
        (restaged(first=3), "stage 1: has units 3 to 3, but must begin with unit 2"),
        (restaged(last=9), "end before unit 4"),
        (restaged(devices=[2, 2]), "stage 1: needs different devices"),
        (restaged(devices=[-1, 2]), "stage 1: needs different devices"),
        (restaged(devices=[1, 2]), "stage 1 shares device 1 with a stage on other devices"),
        (restaged(devices=[10**15, 2]), "device 3 has no stage"),
        (restaged(shards=3), "2 devices can't be copies of 3 shards"),
        (restaged(shards=1), "has one shard, so 'fc6' can't be cut"),
        (restaged(ways=[["fc6"]]), r"stages\[1\]: ways\[0\]: must have 2 parts, not 1"),
        (restaged(ways=[["conv1", "rows"]]), "must say once how one of its own units is cut, not of 'conv1'"),
        (restaged(recompute=1), "recompute: must be true or false, not 1"),
        (changed(stages=[{"first": 0}]), r"stages\[0\]: lacks the field devices"),
        (changed(stages=[7]), r"stages\[0\]: must be an object with fields, not 7"),
    ],
)
def test_rubbish_is_refused_in_one_line(text, why):
    with pytest.raises(ScheduleError, match=why) as refusal:
        layout_from_json(text, "my.json")
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("my.json: ")


def test_a_text_with_any_character_changed_is_a_layout_or_refused():
    text, chance = layout_to_json(LAYOUT), random.Random(3)
    reasons = []
    for _ in range(1500):
        at = chance.randrange(len(text))
        mutant = text[:at] + chance.choice('{}[]",:-0129eaE. \x00é') + text[at + chance.randint(0, 2) :]
        try:
            check_layout(layout_from_json(mutant))
        except ScheduleError as why:
            reasons.append(str(why))
    assert len(reasons) > 750
    assert [why for why in reasons if "\n" in why] == []
