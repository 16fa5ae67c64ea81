"""A layout and costs become what a step is made of."""

import itertools
import random

import pytest
from random_costs import COLUMNS, ELEMENTWISE, ROWS, random_model

from gradtide.errors import ScheduleError
from gradtide.schedule.step.choice.states import STATES, UnitLinks, move, ways_of
from gradtide.schedule.step.choice.ways import COUNTS, ShardWire, choose_ways, exchange_seconds, weigh
from gradtide.schedule.step.costs import CutWay, ModelCosts, UnitCost, Value
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.shape import Seconds
from gradtide.schedule.step.shaping import shape_of


def chain(*ways, size=80.0, parameters=1000):
    """A chain of units with these ways each, whose values are all of one size."""
    units = tuple(
        UnitCost(
            f"u{at}",
            (f"v{at - 1}" if at else "x",),
            (f"v{at}",),
            Seconds(0.0, 1e-6),
            Seconds(0.0, 2e-6),
            saved_bytes=100.0,
            parameter_bytes=parameters,
            trained_bytes=parameters,
            state_per_byte=2.0,
            ways=own,
        )
        for at, own in enumerate(ways)
    )
    values = (Value("x", size, has_gradient=False), *(Value(f"v{at}", size) for at in range(len(ways))))
    return ModelCosts(units, values, ("x",), (f"v{len(ways) - 1}",), 8)


def single(costs, shards, ways):
    names = tuple(unit.name for unit in costs.units)
    return shape_of(Layout(names, (Stage(0, len(names), tuple(range(shards)), shards, ways=ways),)), costs).stages[0]


def test_columns_then_rows_meet_once_forward_and_once_back():
    costs = chain((), (COLUMNS,), (ELEMENTWISE,), (ROWS,), ())
    stage = single(costs, 4, (("u1", "columns"), ("u3", "rows")))
    assert [[one.kind for one in segment.before] for segment in stage.segments] == [[], ["spread"], ["sum"]]
    spread, added = stage.segments[1].before[0], stage.segments[2].before[0]
    assert (spread.forward_bytes, spread.backward_bytes) == (0.0, 120.0)  # 2 (k - 1)/k of 80 bytes, as a ring
    assert (added.forward_bytes, added.backward_bytes) == (120.0, 0.0)
    assert stage.after == ()
    assert stage.segments[1].forward.per_sample_s == pytest.approx(3 * 1e-6 / 4)
    assert stage.parameter_bytes == 3 * 1000 // 4 + 2000
    assert stage.state_bytes == 2 * stage.gradient_bytes == 2 * stage.parameter_bytes


def test_slices_are_gathered_where_gradients_are_partial_and_collected_where_they_are_whole():
    costs = chain((COLUMNS,), (COLUMNS,), ())
    stage = single(costs, 2, (("u0", "columns"), ("u1", "columns")))
    assert stage.segments[0].before == ()  # the model's input has no gradient to be added up
    gather, collect = stage.segments[1].before[0], stage.segments[2].before[0]
    assert (gather.kind, gather.forward_bytes, gather.backward_bytes) == ("gather", 40.0, 40.0)
    assert (collect.kind, collect.forward_bytes, collect.backward_bytes) == ("collect", 40.0, 0.0)


def test_what_leaves_a_stage_is_whole():
    stage = single(chain((), (COLUMNS,)), 2, (("u1", "columns"),))
    assert [one.kind for one in stage.after] == ["collect"]
    stage = single(chain((), (ROWS,)), 2, (("u1", "rows"),))
    assert [one.kind for one in stage.segments[1].before] == ["slice"]
    assert [one.kind for one in stage.after] == ["sum"]


def test_neighbours_send_their_halo():
    halo = CutWay("channels", "sliced", "sliced", halo_bytes=6.0)
    stage = single(chain((COLUMNS,), (halo,), ()), 2, (("u0", "columns"), ("u1", "channels")))
    assert [(one.kind, one.forward_bytes, one.backward_bytes) for one in stage.segments[1].before] == [
        ("halo", 6.0, 6.0)
    ]


def test_a_value_that_several_stages_read_crosses_to_each_and_a_skip_passes_stages_by():
    unit = UnitCost("", (), (), Seconds(0, 1.0), Seconds(0, 1.0), trained_bytes=4, parameter_bytes=4)
    reads = (("x",), ("a",), ("b",), ("a", "c"), ("d",))
    units = tuple(
        UnitCost(f"u{at}", read, (made,), unit.forward, unit.backward, trained_bytes=4, parameter_bytes=4)
        for at, (read, made) in enumerate(zip(reads, "abcde", strict=True))
    )
    values = (Value("x", 1), *(Value(name, size) for name, size in zip("abcde", (2, 3, 5, 7, 11), strict=True)))
    costs = ModelCosts(units, values, ("x",), ("b", "e"), 8)
    names = tuple(one.name for one in units)
    layout = Layout(names, tuple(Stage(at, at + 1, (at,)) for at in range(5)), 3)
    shape = shape_of(layout, costs)
    found = {(one.source, one.target): (one.values, one.forward_bytes) for one in shape.crossings}
    assert found == {
        (0, 1): (("a",), 2),
        (0, 3): (("a",), 2),
        (1, 2): (("b",), 3),
        (1, 4): (("b",), 3),  # an output of the model, which the last stage needs for the loss
        (2, 3): (("c",), 5),
        (3, 4): (("d",), 7),
    }
    assert shape.micro_batches == (2, 3, 3)


def test_tied_parameters_are_held_once_a_stage_and_summed_between_stages():
    costs = random_model(5, 6, tied=True)
    (a, b), (_, size) = costs.tied_units[0], costs.ties[0]
    names = tuple(unit.name for unit in costs.units)
    whole = shape_of(Layout(names, (Stage(0, 6, (0,)),)), costs)
    assert whole.ties == ()
    assert whole.stages[0].parameter_bytes == sum(unit.parameter_bytes for unit in costs.units) - size
    cut = shape_of(Layout(names, (Stage(0, b, (0,)), Stage(b, 6, (1,)))), costs)
    assert [(tie.stages, tie.bytes) for tie in cut.ties] == [((0, 1), size)]
    assert a < b


def test_frozen_units_at_the_beginning_keep_nothing_and_have_no_backward():
    costs = chain((), (), (), parameters=0)
    stage = single(costs, 1, ())
    assert not stage.trained
    assert stage.segments[0].backward.of(8) == 0.0
    assert stage.segments[0].saved_bytes == 0.0


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((Stage(0, 2, (0,)),), "the last stage ends at unit 2"),
        ((Stage(0, 2, (0,)), Stage(1, 3, (1,))), "a stage begins at unit 1"),
        ((Stage(0, 3, (0, 1, 2), 2),), "3 devices can't be copies of 2 shards each"),
        ((Stage(0, 3, (0, 1), 2, ways=(("u1", "towers"),)),), "u1 has no way 'towers'"),
        ((Stage(0, 3, (0, 1), 2, ways=(("u9", "columns"),)),), "no unit 'u9'"),
    ],
)
def test_a_layout_of_something_else_is_refused_in_one_line(stages, words):
    costs = chain((), (COLUMNS,), ())
    with pytest.raises(ScheduleError, match=words):
        shape_of(Layout(("u0", "u1", "u2"), stages), costs)
    with pytest.raises(ScheduleError, match="of another model"):
        shape_of(Layout(("a", "b", "c"), stages), costs)


@pytest.mark.parametrize("seed", range(20))
def test_ways_are_the_best_of_all_combinations(seed):
    draw = random.Random(seed)
    costs = random_model(seed, 5, skips=seed % 2 == 1)
    links, shards = UnitLinks(costs), draw.choice([2, 3, 4])
    wire = ShardWire(draw.choice([1e6, 1e8, 1e10]), 1e-6)
    for prefer in ("fast", "small"):
        chosen = dict(choose_ways(costs, 0, 5, shards, wire, prefer))
        choices = [ways_of(links, at, shards) for at in range(5)]
        weights = {
            tuple(way.name for way in ways): total(links, ways, shards, wire, prefer)
            for ways in itertools.product(*choices)
        }
        taken = tuple(chosen.get(unit.name, "whole") for unit in costs.units)
        assert weights[taken] == pytest.approx(min(weights.values()), rel=1e-12)


def total(links, ways, shards, wire, prefer):
    """What a combination of ways weighs; infinite where one can't follow the other."""
    state, weight = STATES[0], 0.0
    for at, way in enumerate(ways):
        made = move(links, links.costs.units[at], state, way, shards)
        if made is None:
            return float("inf")
        weight += weigh(links.costs.units[at], made, shards, wire, links.costs.samples, COUNTS[prefer])
        state = made.gives
        if at + 1 == len(ways) or not links.flows[at]:
            closing = exchange_seconds(links.finish(at, state, shards), wire, links.costs.samples)
            weight, state = weight + closing * COUNTS[prefer][0], STATES[0]
    return weight
