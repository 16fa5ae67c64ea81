"""plan_split: what it finds, what it says, and what it refuses."""

import itertools
import math
import random
import time

import pytest
from random_costs import random_model, unevenly_wired, wired

from gradtide.errors import ConfigError, DeviceError
from gradtide.schedule.step.choice.bound import least_seconds
from gradtide.schedule.step.choice.mixed import mixed_halves
from gradtide.schedule.step.choice.states import UnitLinks
from gradtide.schedule.step.choice.ways import choose_ways
from gradtide.schedule.step.choice.wires import StepDevices
from gradtide.schedule.step.costs import CutWay, ModelCosts, UnitCost, Value
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.planned import one_host, plan_split
from gradtide.schedule.step.score import score
from gradtide.schedule.step.search import LayoutSearch, SplitWishes
from gradtide.schedule.step.shape import Seconds


def convolutions_and_dense(dense_bytes, samples=64):
    """Five units that compute much and hold little, then three with most of the parameters."""
    channels = CutWay("channels", "whole", "sliced", "partial")
    columns = CutWay("columns", "whole", "sliced", "partial")
    names = [*(f"conv{n}" for n in range(1, 6)), *(f"fc{n}" for n in range(6, 9))]
    units, values = [], [Value("x", 1e5, has_gradient=False)]
    for at, name in enumerate(names):
        dense = name.startswith("fc")
        size = dense_bytes if dense else 1_000_000
        per_sample = 2e-5 if dense else 3e-4
        units.append(
            UnitCost(
                name,
                (f"v{at - 1}" if at else "x",),
                (f"v{at}",),
                Seconds(0.0, per_sample),
                Seconds(0.0, 2 * per_sample),
                saved_bytes=2e4 if dense else 4e5,
                parameter_bytes=size,
                trained_bytes=size,
                ways=(columns if dense else channels,),
            )
        )
        values.append(Value(f"v{at}", 1.6e4 if dense else 3e5))
    return ModelCosts(tuple(units), tuple(values), ("x",), ("v7",), samples)


def test_dense_layers_with_many_parameters_are_cut_and_convolutions_copied():
    plan = plan_split(convolutions_and_dense(50_000_000), 2, wired(2, 1e9))
    assert plan.table == tuple(sorted(plan.table, key=lambda row: row.seconds))
    alone = next(row for row in plan.table if row.name == "copies alone")
    assert plan.best.seconds < alone.seconds
    assert "Copies alone:" in plan.explain()
    assert "gradients" in plan.explain()
    assert plan.best.ratio >= 1.0


def test_copies_alone_win_where_parameters_are_few_and_the_plan_says_so():
    plan = plan_split(convolutions_and_dense(100_000), 2, wired(2, 1e10))
    assert plan.best.name == "copies alone"
    assert plan.explain().startswith("copies alone are fastest here: conv1 to fc8: 2 copies; 1 micro-batch: ")
    assert "Next comes" in plan.explain()


def test_copies_alone_are_taken_where_something_else_is_hardly_faster():
    plan = plan_split(convolutions_and_dense(40_000_000), 2, wired(2, 3e10))
    assert min(row.seconds for row in plan.table) < plan.seconds  # something is faster, by less than 2 %
    assert plan.best.name == "copies alone"
    assert "copies alone are as fast as anything else here" in plan.explain()


def test_where_one_device_is_fastest_all_are_still_used_if_they_are_there():
    plan = plan_split(convolutions_and_dense(100_000_000), 2, "ethernet-cluster:2x1@0.01")
    assert plan.layout.devices == 1
    used = plan.using_all()
    assert used.layout.devices == 2
    assert used.seconds == min(row.seconds for row in plan.table if row.layout.devices == 2)
    assert sorted(row.seconds for row in used.table) == sorted(row.seconds for row in plan.table)
    assert "1 device alone would take" in used.explain()
    assert used.using_all() is used


def test_speeds_are_of_all_devices_or_of_each():
    costs = convolutions_and_dense(100_000)
    slow, fast = plan_split(costs, 2, wired(2, 1e10)), plan_split(costs, 2, wired(2, 1e10), speeds=4)
    assert fast.seconds == plan_split(costs, 2, wired(2, 1e10), speeds=(4, 4)).seconds
    assert slow.seconds / 4.2 < fast.seconds < slow.seconds / 3
    with pytest.raises(ConfigError, match="3 speeds for 2 devices"):
        plan_split(costs, 2, wired(2, 1e10), speeds=(1, 1, 1))


def test_what_copies_alone_would_need_is_said_where_they_do_not_fit():
    costs = convolutions_and_dense(50_000_000)
    plan = plan_split(costs, 4, wired(4), "250MB")
    # Gradients twice: they are gathered into one piece to be added up.
    assert plan.skipped["copies alone"].startswith("does not fit: needs 465 MB")
    assert plan.skipped["copies alone"].endswith("MB a device")
    assert all(row.device_bytes <= 250e6 for row in plan.table)
    assert plan.explain().endswith(f"Copies alone: {plan.skipped['copies alone']}")
    assert plan.bytes_on[1] > plan.bytes_on[2] > plan.bytes_on[4] > 0


def test_a_budget_that_nothing_fits_into_is_refused_with_one_that_something_does():
    costs = convolutions_and_dense(50_000_000)
    with pytest.raises(ConfigError) as refused:
        plan_split(costs, 2, wired(2), "10MB")
    assert "\n" not in str(refused.value)
    words = str(refused.value)
    assert words.startswith("no layout on 2 devices is sure to fit into 10 MB a device: ")
    would_do = words.split(": ")[1].split(" would do")[0]
    assert plan_split(costs, 2, wired(2), would_do).table


def test_a_drawing_is_made(tmp_path):
    plan = plan_split(convolutions_and_dense(1_000_000), 2)
    plan.draw(tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text().count("<svg") == 1
    with pytest.raises(ConfigError, match="the table has rows 0 to"):
        plan.draw(tmp_path / "step.svg", row=99)


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (DeviceError, "one device or more, not 0", {"devices": 0}),
        (DeviceError, "dgx1-v100 has 8 devices, not 9", {"devices": 9, "topology": "dgx1-v100"}),
        (DeviceError, "has no device 'gpu99'", {"devices": ["gpu1", "gpu99"], "topology": "dgx1-v100"}),
        (ConfigError, "no order is called '1f1c'; did you mean '1f1b'", {"devices": 2, "order": "1f1c"}),
        (ConfigError, "64 samples make 1 to 64 micro-batches, not 65", {"devices": 2, "micro_batches": 65}),
        (ConfigError, "one micro-batch or more, not 0", {"devices": 2, "micro_batches": 0}),
        (ConfigError, "3 speeds for 2 devices", {"devices": 2, "speeds": (1, 1, 1)}),
        (ConfigError, "without a topology devices must be a number", {"devices": None}),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(error, words, arguments):
    with pytest.raises(error, match=words) as refused:
        plan_split(convolutions_and_dense(1000), **arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("order", ["gpipe", "interleaved", "zero-bubble"])
def test_other_orders_are_planned_proven_and_simulated(order):
    plan = plan_split(random_model(4, 8), 4, wired(4), order=order, micro_batches=(4, 8), copies=False, shards=False)
    assert any(row.layout.order == order and len(row.layout.stages) > 1 for row in plan.table)


def test_a_pipeline_is_tried_in_both_orders_unless_one_is_named():
    costs = convolutions_and_dense(50_000_000)
    orders = {row.layout.order for row in plan_split(costs, 4, wired(4), "250MB").table if len(row.layout.stages) > 1}
    assert orders == {"1f1b", "gpipe"}
    named = plan_split(costs, 4, wired(4), "250MB", order="1f1b")
    assert {row.layout.order for row in named.table} == {"1f1b"}


def test_layouts_are_planned_where_some_devices_are_not_wired_to_each_other():
    plan = plan_split(convolutions_and_dense(20_000_000), 8, "dgx1-v100")
    assert len(plan.table) >= 4
    assert all(math.isfinite(row.seconds) for row in plan.table)


@pytest.mark.parametrize("seed", range(12))
def test_no_layout_is_faster_than_the_bound(seed):
    draw = random.Random(seed)
    costs = random_model(
        seed, draw.randint(1, 7), skips=seed % 2 == 1, tied=seed % 3 == 0, samples=draw.choice([5, 32])
    )
    count = draw.randint(1, 4)
    topology = wired(count, draw.choice([1e6, 1e9])) if seed % 2 else unevenly_wired(seed, count)
    speeds = [draw.choice([1.0, 0.4]) for _ in range(count)]
    plan = plan_split(costs, count, topology, speeds=speeds)
    for row in plan.table:
        assert row.seconds >= plan.bound_seconds * (1 - 1e-9), row.text
    assert plan.bound_seconds > 0


def test_the_bound_counts_bytes_where_one_device_is_too_small():
    costs = random_model(3, 6)
    held = sum(unit.parameter_bytes + unit.trained_bytes * (1 + unit.state_per_byte) for unit in costs.units)
    slow = wired(2, 100.0)
    free, tight = (StepDevices(slow, 2, memory) for memory in (math.inf, held * 0.9))
    links = UnitLinks(costs)
    assert least_seconds(links, tight, 32) > 10 * least_seconds(links, free, 32)


def test_a_faster_device_is_given_more():
    costs = random_model(2, 8)
    devices = StepDevices(wired(2), 2, speeds=(1.0, 0.25))
    wishes = SplitWishes(micro_batches=(8,), copies=False, shards=False)
    layout = LayoutSearch(costs, devices, wishes).best_of_each()[0].layout
    seconds = [unit.forward.per_sample_s + unit.backward.per_sample_s for unit in costs.units]
    assert len(layout.stages) == 2
    assert sum(seconds[: layout.stages[0].last]) > 2 * sum(seconds[layout.stages[0].last :])


def test_one_host_joins_any_number_of_devices():
    assert len(StepDevices(one_host(1))) == 1
    assert len(plan_split(random_model(1, 4), 1).table) == 1


def test_convolutions_may_be_copies_and_dense_layers_shards_on_the_same_devices():
    plan = plan_split(convolutions_and_dense(100_000_000), 2, wired(2, 5e9))
    stages = plan.layout.stages
    assert [(stage.devices, stage.copies, stage.shards) for stage in stages] == [((0, 1), 2, 1), ((0, 1), 1, 2)]
    assert plan.explain().startswith("conv1 to conv5: 2 copies; fc6 to fc8: 2 shards")
    assert "Copies alone" in plan.explain()
    assert "because of fc6's gradients" in plan.explain()


@pytest.mark.parametrize("seed", range(4))
def test_where_copies_become_shards_is_the_best_place_by_closed_form(seed):
    costs = random_model(seed, 7)
    search = LayoutSearch(costs, StepDevices(wired(2)), SplitWishes(micro_batches=(2,)))
    names, best = tuple(unit.name for unit in costs.units), math.inf
    for cut, order in itertools.product(range(1, 7), ((1, 2), (2, 1))):
        stages = []
        for first, last, shards in ((0, cut, order[0]), (cut, 7, order[1])):
            ways = choose_ways(costs, first, last, shards, search.shard_wire(shards), "fast", search.links)
            stages.append(Stage(first, last, (0, 1), shards, False, ways))
        best = min(best, score(Layout(names, tuple(stages), 2), costs, search.devices).seconds)
    assert mixed_halves(search)[0].seconds == pytest.approx(best)


@pytest.mark.timing
@pytest.mark.parametrize("memory", [math.inf, 1e6])
def test_200_layers_on_64_devices_are_searched_in_seconds(memory):
    costs = random_model(1, 200, samples=256)
    began = time.process_time()
    found = LayoutSearch(costs, StepDevices(wired(64), 64, memory)).best_of_each()
    assert time.process_time() - began < 5.0  # 1.3 and 2.0 s on two cores that others use, too
    assert len(found) == 7
