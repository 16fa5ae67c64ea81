"""What the processes of a split model tell when something is wrong."""

import failing_runs as f
import pytest
import split_runs as runs
from ranks import Failed, Ranks


def test_ranks_that_call_different_things_are_told(device_processes):
    for told in device_processes.run(f.other_calls, 2, runs.new_name()):
        assert "rank 1 calls model.step() while rank 0 calls model(x)" in told


def test_ranks_with_different_batches_are_told_before_anything_changes(device_processes):
    for told in device_processes.run(f.other_batches, 2, runs.new_name()):
        assert "rank 1 was given another batch than rank 0" in told


def test_an_error_on_one_rank_ends_the_others_at_once(device_processes):
    first, second = device_processes.run(f.failing, 2, runs.new_name())
    assert second.startswith("IndexError")
    assert "rank 1" in first


def test_rank_0_plans_and_all_do_as_it_says(device_processes):
    first, second = device_processes.run(f.automatic, 2, runs.new_name())
    assert first[:2] == second[:2]
    assert first[1].devices == 2
    assert "micro-batch" in first[2]


def test_a_plan_that_is_none_is_told_on_all_ranks(device_processes):
    first, second = device_processes.run(f.impossible, 2, runs.new_name())
    assert "the model has no unit '9'" in first
    assert "rank 0 could not plan: the model has no unit '9'" in second


def test_losing_a_worker_ends_training_with_a_line_that_names_it():
    own = Ranks(2)
    try:
        own.start(f.losing, 2, runs.new_name())
        told, again = own.answer(0)
        with pytest.raises((Failed, EOFError, AssertionError, ConnectionResetError)):
            own.answer(1, timeout_s=1)
    finally:
        own.close()
    assert told.startswith("PeerLost")
    assert "rank 1" in told
    assert "has ended" in again
