"""Fewer rounds and smaller messages together: what workers changed is compressed where they meet."""

from dataclasses import replace

import compressing
import compressing_local
import local_inside
import numpy as np
import pytest
import torch
import training
from test_local import NESTEROV, played

import gradtide
from gradtide.compress import Compress
from gradtide.sync import Local


@pytest.mark.parametrize("compress", ["topk:1", "powersgd:512"])
@pytest.mark.parametrize(
    ("size", "local"),
    [(1, Local(4)), (2, Local(3, NESTEROV)), (3, Local(3, gradtide.update("adam", lr=0.01), after=4))],
)
def test_with_all_that_there_is_workers_do_what_one_process_does_that_plays_them(workers, compress, size, local):
    wanted = played("mlp", "momentum", size, 11, local)
    found = workers.run(compressing_local.locally, size, training.new_name(), "momentum", local, compress, 11)
    for parameters, _, _ in found:
        assert max((a - b).abs().max() for a, b in zip(parameters, wanted, strict=True)) < 1e-12


def check_conserved(answers, limit):
    for _, moved, *_ in answers[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(moved, answers[0][1], strict=True))
    for index in range(len(compressing.SHAPES)):
        given, left = (sum(answer[place][index] for answer in answers) for place in (0, 2))
        assert np.abs(answers[0][1][index] + given - left).max() <= limit, index


@pytest.mark.parametrize(("compress", "dtype"), [("onebit", torch.float64), ("topk:0.05", torch.float32)])
def test_what_all_moved_and_what_is_left_is_what_they_stepped_to_the_last_bit(workers, compress, dtype):
    answers = workers.run(compressing_local.conserve, 4, training.new_name(), compress, dtype, 3, 20)
    check_conserved(answers, 0.0)
    assert any(left.any() for left in answers[3][2])


def test_thin_matrices_of_changes_lose_nothing_either(workers):
    name = training.new_name()
    check_conserved(workers.run(compressing_local.conserve, 3, name, "powersgd:1", torch.float64, 3, 20), 1e-10)


def test_meetings_of_the_first_steps_are_whole(workers):
    name, compress = training.new_name(), Compress("topk", ratio=0.05, after=20)
    answers = workers.run(compressing_local.conserve, 2, name, compress, torch.float64, 3, 20)
    assert not any(left.any() for _, _, lefts, _ in answers for left in lefts)
    check_conserved(answers, 0.0)


@pytest.mark.parametrize("compress", ["int8", "bf16", "topk:0.01"])
def test_all_workers_are_alike_and_it_is_said_what_a_meeting_sends(workers, compress):
    answers = workers.run(compressing_local.locally, 2, training.new_name(), "adamw", Local(3), compress, 9)
    (mine, said, sent), (theirs, _, _) = answers
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert len(sent) == 3
    whole = sum(p.nbytes for p in mine)
    assert max(sent) < 0.3 * whole
    assert f"they are averaged: {sent[0] / 3e6:.3g} MB to be synchronised a step instead of {whole / 1e6:.3g}" in said
    assert f"{compress}: {sent[0] / 1e6:.3g} MB a meeting to each worker instead of {whole / 1e6:.3g}" in said, said


def test_auto_on_one_host_is_none_and_says_why(workers):
    parameters, said, _ = workers.run(compressing_local.locally, 2, training.new_name(), "sgd", Local(3), "auto", 6)[0]
    assert "compress='auto': none, since all workers are on one host" in said
    assert all(torch.equal(a, b) for a, b in zip(parameters, played("mlp", "sgd", 2, 6, Local(3)), strict=True))


@pytest.mark.parametrize("sync", ["auto", Local(3)])
@pytest.mark.parametrize("compress", ["onebit", "powersgd:1"])
def test_a_loop_of_ones_own_goes_on_with_what_was_left_out(workers, sync, compress):
    for one, other in workers.run(compressing_local.go_on_by_hand, 2, training.new_name(), compress, sync):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- inside of hosts ---

HOSTS = [  # of each rank, who leads there, and how far off it may be: thirds are rounded
    ("onebit", [0, 0, 1, 1], [0, 2], 0.0),
    ("topk:0.05", [0, 1, 0, 1], [0, 1], 0.0),
    ("topk:0.05", [0, 0, 0, 1], [0, 3], 1e-9),
]


@pytest.mark.parametrize(("compress", "places", "leaders", "limit"), HOSTS)
def test_of_what_hosts_have_changed_nothing_is_lost_and_one_worker_of_each_sends_it(
    workers, compress, places, leaders, limit
):
    name = training.new_name()
    answers = workers.run(compressing_local.conserve, 4, name, compress, torch.float64, 3, 20, places)
    check_conserved(answers, limit)
    for rank, (_, _, left, (sent, said)) in enumerate(answers):
        assert any(one.any() for one in left) == (rank in leaders)
        assert sent == answers[0][3][0] < 0.3 * 48_768
        assert "MB a meeting to each host instead of 0.0488" in said, said


def test_thin_matrices_of_hosts_lose_nothing_either(workers):
    name = training.new_name()
    answers = workers.run(compressing_local.conserve, 4, name, "powersgd:1", torch.float64, 3, 20, [0, 0, 1, 1])
    check_conserved(answers, 1e-10)


@pytest.mark.parametrize("compress", ["topk:1", "powersgd:512"])
def test_with_all_that_there_is_hosts_do_what_one_process_does_that_plays_them(workers, compress):
    local, places = Local(3, NESTEROV, within="host"), [0, 0, 0, 1]
    wanted = local_inside.played("momentum", 4, local, (3, 1))
    name = training.new_name()
    for found, *_ in workers.run(local_inside.train, 4, name, places, "momentum", local, 29, compress):
        assert max((a - b).abs().max() for a, b in zip(found, wanted, strict=True)) < 1e-12


@pytest.mark.parametrize("compress", ["topk:0.05", "powersgd:1"])
def test_whoever_loads_what_was_left_out_it_goes_to_the_one_that_sends(workers, compress):
    name, places = training.new_name(), [0, 0, 1, 1]
    answers = workers.run(compressing_local.go_on_as_another, 4, name, compress, places)
    for index in range(len(compressing.SHAPES)):
        had, loaded, left = (sum(answer[place][index] for answer in answers) for place in (0, 1, 2))
        assert np.abs(loaded - had).max() < 1e-12
        assert np.abs(answers[0][3][index] + had - left).max() < 1e-9  # what is not sent yet is still there
    assert any(one.any() for answer in answers for one in answer[1])


def test_where_all_workers_are_on_one_host_nothing_goes_between_hosts_and_it_says_so(workers):
    name, local = training.new_name(), Local(3, within="host")
    for _, _, said in workers.run(local_inside.train, 2, name, [0, 0], "momentum", local, 29, "int8"):
        assert "nothing is compressed, since nothing goes between hosts" in said


# --- over servers ---


@pytest.mark.parametrize("local", [Local(4), Local(3, NESTEROV, after=4)])
def test_over_servers_the_largest_of_all_values_give_what_whole_changes_give(stores, workers, local):
    found = []
    for compress in (None, "topk:1"):
        over = replace(local, over=gradtide.Servers("bsp", name=training.new_name()))
        found.append(workers.run(compressing_local.locally, 2, stores, "momentum", over, compress, 11))
    for (mine, _, _), (theirs, said, _) in zip(*found, strict=True):
        assert max((a - b).abs().max() for a, b in zip(mine, theirs, strict=True)) < 1e-12
        assert "topk:1 both ways" in said


@pytest.mark.parametrize("compress", ["onebit", "topk:0.05"])
def test_over_servers_nothing_of_a_window_is_lost(stores, workers, compress):
    local = Local(3, over=gradtide.Servers("bsp", name=training.new_name()))
    answers = workers.run(compressing_local.over_servers, 4, stores, compress, local, 12)
    for _, moved, _, _, said in answers:
        assert all(np.array_equal(a, b) for a, b in zip(moved, answers[0][1], strict=True))
        assert f"{compress} both ways: " in said
        assert "MB a meeting instead of 0.0488" in said
    for index in range(len(compressing.SHAPES)):
        given = sum(answer[0][index] for answer in answers)
        left = sum(answer[2][index] for answer in answers) / 4 / 3  # of pushes that count 3 samples of 12
        assert np.abs(answers[0][3][index] + given - left).max() < 1e-9, index
    assert not np.array_equal(answers[0][3][4], answers[0][1][4])  # the servers keep what their answers left out


def test_async_sends_in_the_end_all_that_was_left_out(stores, workers):
    local = Local(3, over=gradtide.Servers("async", name=training.new_name()))
    ((given, moved, left, _, said),) = workers.run(compressing_local.over_servers, 1, stores, "topk:0.05", local, 12)
    assert any(one.any() for one in left)
    assert all(np.array_equal(a, -b) for a, b in zip(moved, given, strict=True))
    assert "topk:0.05 to the servers, and whole values back, since async has no rounds" in said


@pytest.mark.parametrize(
    ("local", "compress", "said"),
    [
        (Local(3, gradtide.update("adam", lr=0.1)), "onebit", "does not go with an outer adam"),
        (Local(3, over=gradtide.Servers("bsp")), "powersgd", "which servers can't"),
        (Local(3, over=gradtide.Servers("bsp")), Compress("int8", after=3), "leave after= out"),
    ],
)
def test_what_does_not_go_with_local_steps_is_refused_by_name(workers, local, compress, said):
    options = {"sync": local, "compress": compress}
    answers = workers.run(compressing.refused, 2, training.new_name(), options, "sgd")
    assert all(said in answer for answer in answers), answers
