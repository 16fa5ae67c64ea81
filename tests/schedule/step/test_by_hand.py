import pytest

from gradtide.errors import ConfigError, ScheduleError
from gradtide.schedule.step.by_hand import parse_layout
from gradtide.schedule.step.layout import Layout, Stage

UNITS = ("conv1", "pool1", "fc2", "fc3")


def stages(text):
    return parse_layout(text, UNITS).stages


def test_stages_take_devices_one_after_the_other():
    assert stages("conv1..pool1 x2 | fc2..fc3 /2") == (Stage(0, 2, (0, 1)), Stage(2, 4, (2, 3), shards=2))


def test_an_end_that_is_left_out_is_where_the_stage_before_or_the_model_ends():
    assert stages("..pool1 x2 | ..fc2 | fc3") == (Stage(0, 2, (0, 1)), Stage(2, 3, (2,)), Stage(3, 4, (3,)))
    assert stages("x2 /2") == (Stage(0, 4, (0, 1, 2, 3), shards=2),)
    assert stages("conv1.. recompute") == (Stage(0, 4, (0,), recompute=True),)


def test_stages_may_share_their_devices():
    found = stages("..pool1 x2 @0,1 | fc2.. /2 @0,1")
    assert found == (Stage(0, 2, (0, 1)), Stage(2, 4, (0, 1), shards=2))
    assert found[0].copies == 2
    assert found[1].copies == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("conv1 |", "is empty"),
        ("conv1..pool9 | fc2..fc3", "no unit 'pool9'"),
        ("conv1..pool1 y2 | fc2..fc3", "'y2' says nothing"),
        ("pool1..fc3", "the model begins"),
        ("conv1 | fc2..fc3", "the stage before it ends with conv1; it should begin with pool1"),
        ("x2 ; 4 1f2b", "'1f2b' is no number of micro-batches and no order; orders are gpipe, 1f1b"),
        ("x2 ; 0", "micro-batches, not 0"),
        ("conv1..fc2", "no stage has unit fc3"),
        ("fc2..conv1", "ends before it begins"),
        ("x0", "0 copies"),
        ("..pool1 @0,1 | fc2.. @1,2", "all devices in common or none"),
        ("..pool1 @0 | fc2.. @2", "device 1 has no stage"),
        ("x2 | fc2..", "not the last one says where it ends"),
        ("x3 @0,1", "names 2 devices for 3 copies of 1 shards; name 3"),
    ],
)
def test_a_text_that_makes_no_sense_is_refused_in_one_line(text, says):
    with pytest.raises((ConfigError, ScheduleError), match=says) as caught:
        stages(text)
    assert "\n" not in str(caught.value)


def test_micro_batches_and_the_order_may_follow():
    assert parse_layout("x2 ; 8 gpipe", UNITS) == Layout(UNITS, (Stage(0, 4, (0, 1)),), 8, "gpipe")
    assert parse_layout("x2; 8 micro-batches, gpipe", UNITS).micro_batches == 8
    assert parse_layout("x2", UNITS, 4).micro_batches == 4


def test_a_block_of_layers_is_all_of_its_units():
    units = ("token", "blocks.0.norm", "blocks.0.add:2", "blocks.1.norm", "head")
    found = parse_layout("..blocks.0 | blocks.1..", units).stages
    assert [(stage.first, stage.last) for stage in found] == [(0, 3), (3, 5)]
    assert [(s.first, s.last) for s in parse_layout("token | blocks.0 | ..", units).stages] == [(0, 1), (1, 3), (3, 5)]
