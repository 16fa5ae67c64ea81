"""Workers die, and what was lost with them is done again: the result is that of one process, or is refused."""

import again_script
import numpy as np
import pytest
from test_elastic import run

RESTARTS = ["--max-restarts", "3"]


def check(folder, workers, program):
    for worker in workers:
        found = np.load(folder / f"{worker}.npz")
        for name, value in zip(found.files, again_script.alone(program), strict=True):
            assert np.abs(found[name] - value).max() < 1e-10


def train(folder, workers, options, program, *deaths, way="shared", loader="dataset"):
    """The job's output; it must end well."""
    arguments = [program, way, loader, *deaths]
    code, output = run(folder, ["--workers", str(workers), *options], arguments, "again_script.py")
    assert code == 0, output
    return output


@pytest.mark.parametrize(
    ("way", "workers", "deaths"),
    [
        ("shared", 3, ["1:0:step 5", "1:1:wrapped"]),
        ("copies", 2, ["0:0:forward 5", "0:1:wrapped", "0:2:wrapped"]),
        pytest.param("shared", 3, ["0:0:end 5", "0:1:wrapped"], marks=pytest.mark.slow),
        pytest.param("copies", 3, ["0:0:step 5", "1:0:step 6", "0:1:wrapped"], marks=pytest.mark.slow),
    ],
)
def test_a_batch_comes_again_whoever_dies_while_it_is_agreed_on(tmp_path, way, workers, deaths):
    output = train(tmp_path, workers, RESTARTS, "every", *deaths, way=way)
    assert output.count("is started again") == len(deaths)
    check(tmp_path, range(workers), "every")


@pytest.mark.parametrize(
    ("way", "loader", "deaths"),
    [
        ("shared", "list", ["1:0:step 2", "1:1:wrapped"]),
        ("copies", "dataset", ["0:0:step 2", "2:0:backward 5", "0:1:wrapped"]),
        pytest.param("shared", "dataset", ["1:0:forward 3", "1:1:forward 2"], marks=pytest.mark.slow),
        pytest.param("copies", "list", ["0:0:backward 5"], marks=pytest.mark.slow),
        pytest.param("auto", "dataset", ["2:0:end 7", "2:1:forward 3"], marks=pytest.mark.slow),
    ],
)
def test_all_batches_of_a_lost_step_come_again_at_their_places(tmp_path, way, loader, deaths):
    """Buffers, which forward changes, are those of one process, too."""
    output = train(tmp_path, 3, RESTARTS, "by_place", *deaths, way=way, loader=loader)
    assert output.count("is started again") == len(deaths)
    check(tmp_path, range(3), "by_place")


def test_all_batches_of_a_lost_step_come_again_to_those_who_are_left(tmp_path):
    train(tmp_path, 3, ["--min-workers", "2"], "by_place", "1:0:step 2")
    check(tmp_path, (0, 2), "by_place")


@pytest.mark.parametrize(
    ("program", "way", "options", "why"),
    [
        ("own_counter", "shared", ["--min-workers", "1"], "its last one must be told by their place"),
        ("own_counter", "servers", ["--min-workers", "1", "--servers", "1"], "each batch of gradtide.shard must be a"),
        ("carries_over", "copies", ["--min-workers", "1"], "step with the last batch, too"),
        ("two_steps", "copies", ["--min-workers", "1"], "a second step with one batch of gradtide.shard"),
        (
            "apart",
            "copies",
            [],
            "its batch number 2 of gradtide.shard, and worker 0 with number 3",
        ),
        (
            "apart",
            "shared",
            [],
            "its batch number 2 of gradtide.shard, and worker 0 with number 3",
        ),
    ],
)
def test_what_could_not_be_done_again_is_refused_whether_a_worker_dies_or_not(tmp_path, program, way, options, why):
    code, output = run(tmp_path, ["--workers", "2", *options], [program, way, "list"], "again_script.py")
    assert code == 1
    assert why in output


def test_a_loop_of_its_own_counter_is_followed_where_no_worker_dies_or_comes(tmp_path):
    train(tmp_path, 2, [], "own_counter")
    check(tmp_path, range(2), "own_counter")


@pytest.mark.parametrize(
    ("way", "workers", "options", "deaths"),
    [
        ("shared", 3, ["--min-workers", "2"], ["1:0:step 4"]),
        ("copies", 2, RESTARTS, ["0:0:step 4", "0:1:wrapped"]),
        pytest.param("shared", 2, RESTARTS, ["1:0:forward 9", "1:1:step 2"], marks=pytest.mark.slow),
        pytest.param("auto", 3, RESTARTS, ["2:0:end 5", "1:0:step 8"], marks=pytest.mark.slow),
    ],
)
def test_a_schedule_by_steps_counts_the_steps_that_stayed(tmp_path, way, workers, options, deaths):
    train(tmp_path, workers, options, "scheduled", *deaths, way=way)
    check(tmp_path, [0, 2] if "--min-workers" in options else range(workers), "scheduled")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("scheduled_before", "where it is taken again; what sets it counts what was lost with a worker"),
        ("scheduled_by_hand", "lr of group 0 was 0.025 when this step was taken first, and is 0.02"),
    ],
)
def test_a_schedule_that_counts_what_was_lost_is_refused_before_the_step_is_taken_again(tmp_path, program, why):
    options, arguments = ["--workers", "3", "--min-workers", "2"], [program, "shared", "list", "1:0:step 4"]
    code, output = run(tmp_path, options, arguments, "again_script.py")
    assert code == 1
    assert why in output


def test_parameters_that_differ_at_the_end_are_refused_where_workers_may_die_too(tmp_path):
    options, arguments = ["--workers", "2", "--min-workers", "1"], ["edited", "copies", "list"]
    code, output = run(tmp_path, options, arguments, "again_script.py")
    assert code == 1
    assert "0.weight is no longer the same on all workers" in output


@pytest.mark.parametrize("way", ["shared", "copies"])
def test_a_worker_that_dies_before_the_last_comparison_keeps_nobody_from_ending(tmp_path, way):
    train(tmp_path, 3, ["--min-workers", "1"], "every", "0:0:close", way=way)
    check(tmp_path, (1, 2), "every")
