"""Schedules of many slices that are alike: proven by one slice of each stream, and the same as their whole list."""

import dataclasses

import numpy as np
import pytest

from gradtide.errors import ScheduleError
from gradtide.schedule.build.exits import exits_of
from gradtide.schedule.build.rail_streams import choices_of, sliced
from gradtide.schedule.classes.sliced import SlicedSchedule, prove_slices
from gradtide.schedule.model import Op
from gradtide.schedule.plan import plan, request_for
from gradtide.schedule.predict.op_arrays import arrays_of
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.strategies.balanced_rails import sliced_run
from gradtide.schedule.verify import verify

REQUEST = request_for("mixed:1+2", 10**7)


@pytest.fixture(scope="module", params=[False, True], ids=["one stream", "two streams"])
def schedule(request: pytest.FixtureRequest) -> SlicedSchedule:
    machines = exits_of(REQUEST)
    choices = choices_of(REQUEST, machines)
    one = sliced(REQUEST, machines, choices[0], 60)
    if not request.param:
        return one
    other = sliced(REQUEST, machines, choices[-1], 60).streams[0]
    last = 1 + max(op.channel for op in one.streams[0].ops)
    apart = tuple(op._replace(channel=op.channel + last) for op in other.ops)
    return SlicedSchedule((*one.streams, dataclasses.replace(other, ops=apart)), (*one.order, (1, 2), (0, 3), (1, 1)))


def test_the_proof_of_one_slice_of_each_stream_says_what_the_proof_of_the_whole_list_says(schedule):
    whole, slices = verify(schedule.listed()), prove_slices(schedule)
    assert slices.steps == whole.steps
    assert slices.scratch == pytest.approx(whole.scratch)


def test_the_list_is_what_ranks_say_one_by_one_and_what_the_arrays_say(schedule):
    whole = schedule.listed()
    assert len(whole.ops) == schedule.op_count
    for rank in (0, 7, 23):
        assert list(schedule.ops_of(rank)) == [op for op in whole.ops if rank in (op.src, op.dst)]
    ours, theirs = schedule.arrays(), arrays_of(whole)
    for field in dataclasses.fields(theirs):
        assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name


def test_its_prediction_is_that_of_the_whole_list(schedule):
    run = sliced_run(schedule, REQUEST, Resources(REQUEST.topology))
    whole = simulate(schedule.listed(), REQUEST.topology, REQUEST.size_bytes)
    assert run.seconds == whole.seconds
    assert np.array_equal(run.end_s, whole.end_s)


def test_a_slice_that_is_wrong_is_caught_wherever_it_is(schedule):
    for stream, right in enumerate(schedule.streams):
        for wrong in (right.ops[:-1], right.ops[1:], _without_a_dep(right.ops)):
            numbered = tuple(op._replace(id=at, deps=_kept(op.deps, at)) for at, op in enumerate(wrong))
            streams = list(schedule.streams)
            streams[stream] = dataclasses.replace(right, ops=numbered)
            with pytest.raises(ScheduleError):
                prove_slices(SlicedSchedule(tuple(streams), schedule.order))


def _kept(deps: tuple[int, ...], at: int) -> tuple[int, ...]:
    return tuple(dep for dep in deps if dep < at)


def _without_a_dep(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    at = next(at for at, op in enumerate(ops) if op.deps)
    return (*ops[:at], ops[at]._replace(deps=ops[at].deps[1:]), *ops[at + 1 :])


def test_streams_that_do_not_fit_together_are_refused(schedule):
    stream = schedule.streams[0]
    shifted = tuple(op._replace(id=op.id + 1, deps=tuple(dep + 1 for dep in op.deps)) for op in stream.ops)
    of_one = dataclasses.replace(stream, contributors=1, ops=())  # right by itself; others would lack its chunk
    for streams, order in (
        ((stream,), ()),
        ((stream,), ((0, 0),)),
        ((stream, stream), ((0, 1),)),
        ((dataclasses.replace(stream, ops=shifted),), ((0, 1),)),
        ((stream, dataclasses.replace(stream, ranks=stream.ranks[::-1])), ((0, 1), (1, 1))),
        ((stream, of_one), ((0, 1), (1, 1))),
        ((of_one,), ((0, 1),)),
    ):
        with pytest.raises(ScheduleError):
            prove_slices(SlicedSchedule(streams, order))


def test_a_plan_lists_its_slices_only_when_asked():
    row = next(row for row in plan(REQUEST.topology, 10**7).table if row.name == "balanced-rails")
    assert isinstance(row.made, SlicedSchedule)
    verify(row.schedule)
    assert len(row.schedule.ops) == row.op_count == len(row.simulation.end_s)
