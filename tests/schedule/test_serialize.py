import json

import pytest

from gradtide.errors import ScheduleError
from gradtide.schedule import serialize, strategies
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.request import STRATEGIES, Request
from gradtide.schedule.serialize import schedule_from_json, schedule_to_json
from gradtide.schedule.verify import verify
from gradtide.topology.presets import preset

pytestmark = pytest.mark.quick

assert strategies.__all__  # importing them registers them

GPUS = ("gpu0", "gpu1", "gpu2", "gpu3")


def ring() -> Schedule:
    return STRATEGIES["ring"](Request(preset("pcie-4gpu"), GPUS, 1000, "reduce_scatter"))


def test_a_schedule_survives_json():
    assert schedule_from_json(schedule_to_json(ring())) == ring()


def broken(**changes: object) -> str:
    return json.dumps(json.loads(schedule_to_json(ring())) | changes)


def broken_op(**changes: object) -> str:
    data = json.loads(schedule_to_json(ring()))
    data["ops"][2] |= changes
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rubbish", "plan.json: is not JSON"),
        ("[" * 100_000, "plan.json: is not JSON"),
        ("[]", "plan.json: must be a JSON object, not list"),
        (broken(gradtide_schedule=2), "plan.json: field gradtide_schedule must be 1"),
        (broken(collective="gossip"), "plan.json: field collective is 'gossip', but must be one of all_reduce"),
        (broken(weights=[1, 2.5]), "plan.json: field weights must hold whole numbers only"),
        (broken(ranks=[0, 1]), "plan.json: field ranks must hold texts only"),
        (broken(contributors=True), "plan.json: field contributors must be a whole number, not true"),
        (broken(ops=None), "plan.json: field ops must be a list, not null"),
        (broken_op(kind="move"), "plan.json: op 2 of the list: field kind is 'move', but must be one of copy, reduce"),
        (broken_op(deps="0"), "plan.json: op 2 of the list: field deps must be a list"),
        (broken_op(src=None), "plan.json: op 2 of the list: field src must be a whole number, not null"),
        (broken_op(sorce=1), "plan.json: op 2 of the list: has an unknown field sorce"),
    ],
)
def test_errors_name_file_op_and_field_in_one_line(text: str, fault: str):
    with pytest.raises(ScheduleError) as error:
        schedule_from_json(text, "plan.json")
    assert str(error.value).startswith(fault)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_a_huge_file_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serialize, "MAX_JSON_BYTES", 100)
    with pytest.raises(ScheduleError, match="longer than 100 bytes"):
        schedule_from_json("x" * 101)


def test_cyclic_deps_are_refused_with_the_cycle_named():
    ops = (Op(0, 0, 1, 0, "reduce", (2,)), Op(1, 1, 0, 0, "copy", (0,)), Op(2, 0, 1, 0, "copy", (1,)))
    schedule = Schedule("mine", "all_reduce", ("a", "b"), 2, (1,), ops)
    with pytest.raises(ScheduleError, match=r"op 0 .*circle, 0 -> 2 -> 1 -> 0"):
        verify(schedule_from_json(schedule_to_json(schedule)))
