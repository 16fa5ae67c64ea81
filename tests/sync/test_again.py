"""Workers die, and what was lost with them is done again: the result is that of one process, or is refused."""

import again_script
import numpy as np
import pytest
import torch
from test_elastic import run
from torch.utils._pytree import tree_leaves

RESTARTS = ["--max-restarts", "3"]


def check(folder, workers, program):
    for worker in workers:
        found = np.load(folder / f"{worker}.npz")
        for name, value in zip(found.files, again_script.alone(program), strict=True):
            assert np.abs(found[name] - value).max() < 1e-10


def check_saved(folder, program):
    """What was saved in mid-epoch is what one process had there."""
    wanted, found = again_script.in_one_process(program).saved, sorted(folder.glob("*.pt"))
    assert len(found) >= len(wanted) - 1  # one may have died before it saved
    for path in found:
        pairs = zip(tree_leaves(torch.load(path)), tree_leaves(wanted[int(path.stem)]), strict=True)
        assert all(torch.allclose(a, b, 0, 1e-10) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def train(folder, workers, options, program, *deaths, way="shared", loader="dataset"):
    """The job's output; it must end well, and nobody fail but those who are killed."""
    arguments = [program, way, loader, *deaths]
    code, output = run(folder, ["--workers", str(workers), *options], arguments, "again_script.py")
    assert code == 0, output
    assert " failed with exit code 1" not in output
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
    ("way", "workers", "loader", "deaths"),
    [
        ("shared", 2, "list", ["1:0:step 2", "1:1:wrapped"]),
        ("copies", 3, "dataset", ["0:0:step 2", "2:0:backward 5", "0:1:wrapped"]),
        pytest.param("shared", 3, "dataset", ["1:0:forward 3", "1:1:forward 2"], marks=pytest.mark.slow),
        pytest.param("copies", 2, "list", ["0:0:backward 5"], marks=pytest.mark.slow),
        pytest.param("auto", 3, "dataset", ["2:0:end 7", "2:1:forward 3"], marks=pytest.mark.slow),
    ],
)
def test_all_batches_of_a_lost_step_come_again_at_their_places(tmp_path, way, workers, loader, deaths):
    """Buffers, which forward changes, are those of one process, too."""
    output = train(tmp_path, workers, RESTARTS, "by_place", *deaths, way=way, loader=loader)
    assert output.count("is started again") == len(deaths)
    check(tmp_path, range(workers), "by_place")


def test_all_batches_of_a_lost_step_come_again_to_those_who_are_left(tmp_path):
    train(tmp_path, 3, ["--min-workers", "2"], "by_place", "1:0:step 2")
    check(tmp_path, (0, 2), "by_place")


@pytest.mark.parametrize(
    ("program", "way", "workers", "options", "deaths"),
    [
        ("edited_after", "shared", 2, RESTARTS, ["1:0:edit 2"]),
        ("edited_before", "copies", 3, RESTARTS, ["0:0:edit 2"]),
        pytest.param("edited_alone", "shared", 3, ["--min-workers", "2"], ["0:0:edit 3"], marks=pytest.mark.slow),
        pytest.param("loaded", "copies", 2, RESTARTS, ["0:0:edit 1", "0:1:wrapped"], marks=pytest.mark.slow),
        pytest.param("edited_after", "copies", 3, RESTARTS, ["1:0:step 5", "1:1:wrapped"], marks=pytest.mark.slow),
        pytest.param("edited_before", "shared", 2, RESTARTS, ["1:0:edit 4", "1:1:forward 1"], marks=pytest.mark.slow),
        pytest.param("edited_alone", "copies", 2, RESTARTS, ["0:0:edit 4", "1:0:edit 8"], marks=pytest.mark.slow),
        pytest.param("loaded", "shared", 3, ["--min-workers", "2"], ["0:0:edit 1"], marks=pytest.mark.slow),
        pytest.param("edited_by_main", "copies", 3, RESTARTS, ["1:0:edit 2"], marks=pytest.mark.slow),
        pytest.param("edited_by_main", "shared", 2, RESTARTS, ["0:0:step 5"], marks=pytest.mark.slow),
    ],
)
def test_an_edit_is_made_once_by_all_whoever_dies_in_it_or_comes_after_it(
    tmp_path, program, way, workers, options, deaths
):
    train(tmp_path, workers, options, program, *deaths, way=way)
    check(tmp_path, range(1, workers) if options is not RESTARTS else range(workers), program)


@pytest.mark.parametrize(("way", "workers"), [("shared", 2), pytest.param("copies", 3, marks=pytest.mark.slow)])
def test_an_edit_that_died_with_the_only_worker_that_made_it_is_refused(tmp_path, way, workers):
    options, arguments = ["--workers", str(workers), *RESTARTS], ["edited_by_main", way, "list", "0:0:edit 2"]
    code, output = run(tmp_path, options, arguments, "again_script.py")
    assert code == 1
    assert "what was changed on worker 0 alone is lost; make the same edit on all workers" in output


@pytest.mark.parametrize(
    ("way", "workers", "options", "deaths"),
    [
        ("shared", 2, RESTARTS, ["0:0:evaluate 8", "1:0:mean 5"]),
        ("copies", 3, ["--min-workers", "2"], ["0:0:saved 3"]),
        pytest.param("auto", 3, RESTARTS, ["0:0:evaluate 30", "1:0:saved 12"], marks=pytest.mark.slow),
        pytest.param("copies", 2, RESTARTS, ["1:0:step 5", "1:1:evaluate 3"], marks=pytest.mark.slow),
    ],
)
def test_who_dies_where_all_evaluate_or_one_saves_changes_nothing(tmp_path, way, workers, options, deaths):
    train(tmp_path, workers, options, "evaluated", *deaths, way=way)
    check(tmp_path, range(1, workers) if options is not RESTARTS else range(workers), "evaluated")
    check_saved(tmp_path, "evaluated")


@pytest.mark.parametrize(
    ("way", "options", "death"),
    [
        ("copies", ["--min-workers", "2"], "0:0:shown 2"),
        pytest.param("shared", RESTARTS, "2:0:shown 4", marks=pytest.mark.slow),
    ],
)
def test_a_batch_in_which_all_evaluate_first_comes_again_without_who_dies_in_it(tmp_path, way, options, death):
    train(tmp_path, 3, options, "evaluated_first", death, way=way)
    check(tmp_path, range(1, 3) if options is not RESTARTS else range(3), "evaluated_first")


@pytest.mark.parametrize(
    ("way", "workers", "deaths"),
    [
        ("copies", 3, ["1:0:step 4", "0:0:begins 3"]),
        ("shared", 2, ["0:0:begins 1"]),
        pytest.param("shared", 3, ["0:0:forward 8", "1:0:begins 3", "0:1:begins 1"], marks=pytest.mark.slow),
        pytest.param("auto", 3, ["2:0:begins 1", "0:0:begins 2"], marks=pytest.mark.slow),
    ],
)
def test_who_dies_while_all_begin_alike_is_not_missed_by_one_who_has_just_come(tmp_path, way, workers, deaths):
    output = train(tmp_path, workers, RESTARTS, "scheduled", *deaths, way=way)
    assert output.count("is started again") == len(deaths)
    check(tmp_path, range(workers), "scheduled")


SIZES = ["--max-restarts", "3", "--min-workers", "1", "--max-workers", "5"]


@pytest.mark.parametrize(
    ("program", "way", "workers", "moments", "left"),
    [
        ("scheduled", "copies", 3, ["2@0:0:step 3", "1:0:step 4"], [0, 1]),
        ("edited_after", "shared", 2, ["3@0:0:end 2"], [0, 1, 2]),
        *(
            pytest.param(program, way, *job, marks=pytest.mark.slow)
            for program, way in [("scheduled", "copies"), ("edited_after", "shared"), ("by_place", "auto")]
            for job in [
                (2, ["3@0:0:end 2", "2:0:wrapped"], [0, 1]),
                (3, ["4@0:0:end 3", "2:0:step 5", "3:0:forward 1"], [0, 1, 2]),
                (3, ["2@0:0:step 3", "0:0:step 3"], [0, 1]),
                (2, ["3@0:0:end 2", "2:0:started"], [0, 1]),
                (2, ["3@0:0:step 3", "0:0:step 3"], [0, 1]),
                (2, ["3@0:0:end 7", "1:0:end 7"], [0, 1]),
                (3, ["2@0:0:step 3", "2:0:step 3"], [0, 1]),
                (3, ["2@1:0:end 7", "0:0:end 7"], [0, 1]),
                (2, ["4@0:0:end 2", "1@1:0:end 9", "0:0:step 8"], [0]),
            ]
        ),
    ],
)
def test_who_dies_while_a_job_grows_or_shrinks_shows_in_nothing(tmp_path, program, way, workers, moments, left):
    """`left`: who must be there in the end, besides those who may come too late."""
    train(tmp_path, workers, SIZES, program, *moments, way=way)
    check(tmp_path, {*left, *(int(path.stem) for path in tmp_path.glob("*.npz"))}, program)


@pytest.mark.parametrize(
    ("program", "way", "options", "why"),
    [
        ("own_counter", "shared", ["--min-workers", "1"], "its last one must be told by their place"),
        ("own_counter", "servers", ["--min-workers", "1", "--servers", "1"], "each batch of gradtide.shard must be a"),
        ("carries_over", "copies", ["--min-workers", "1"], "step with the last batch, too"),
        ("edits_within", "shared", ["--min-workers", "1"], "between the batches of a step"),
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
            ["--workers", "3"],
            "its batch number 2 of gradtide.shard, and worker 0 with number 3",
        ),
    ],
)
def test_what_could_not_be_done_again_is_refused_whether_a_worker_dies_or_not(tmp_path, program, way, options, why):
    code, output = run(tmp_path, ["--workers", "2", *options], [program, way, "list"], "again_script.py")
    assert code == 1
    assert why in output


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_program_that_is_refused_is_not_started_again(tmp_path, workers):
    options = ["--workers", str(workers), *RESTARTS, "--min-workers", "1"]
    code, output = run(tmp_path, options, ["own_counter", "shared", "list"], "again_script.py")
    assert code == 1
    assert "is started again" not in output
    assert "goes on without" not in output
    assert "its last one must be told by their place" in output


def test_a_loop_of_its_own_counter_is_followed_where_no_worker_dies_or_comes(tmp_path):
    train(tmp_path, 2, [], "own_counter")
    check(tmp_path, range(2), "own_counter")


@pytest.mark.parametrize(
    ("way", "workers", "options", "deaths"),
    [
        ("shared", 3, ["--min-workers", "2"], ["1:0:step 4"]),
        ("copies", 2, RESTARTS, ["0:0:forward 4", "0:1:wrapped"]),
        pytest.param("shared", 2, RESTARTS, ["1:0:forward 9", "1:1:step 2"], marks=pytest.mark.slow),
        pytest.param("auto", 3, RESTARTS, ["2:0:end 5", "1:0:step 8"], marks=pytest.mark.slow),
    ],
)
def test_a_schedule_by_steps_counts_the_steps_that_stayed(tmp_path, way, workers, options, deaths):
    train(tmp_path, workers, options, "scheduled", *deaths, way=way)
    check(tmp_path, [0, 2] if "--min-workers" in options else range(workers), "scheduled")


@pytest.mark.parametrize(
    ("program", "workers", "why"),
    [
        ("scheduled_before", 2, "where it is taken again; what sets it counts what was lost with a worker"),
        ("scheduled_by_hand", 3, "lr of group 0 was 0.025 when this step was taken first, and is 0.02"),
    ],
)
def test_a_schedule_that_counts_what_was_lost_is_refused_before_the_step_is_taken_again(
    tmp_path, program, workers, why
):
    options = ["--workers", str(workers), "--min-workers", "1"]
    arguments = [program, "shared", "list", "1:0:step 4"]
    code, output = run(tmp_path, options, arguments, "again_script.py")
    assert code == 1
    assert why in output


def test_parameters_that_differ_at_the_end_are_refused_where_workers_may_die_too(tmp_path):
    options, arguments = ["--workers", "2", "--min-workers", "1"], ["edited", "copies", "list"]
    code, output = run(tmp_path, options, arguments, "again_script.py")
    assert code == 1
    assert "0.weight is no longer the same on all workers" in output


@pytest.mark.parametrize("way", ["shared", pytest.param("copies", marks=pytest.mark.slow)])
def test_a_worker_that_dies_before_the_last_comparison_keeps_nobody_from_ending(tmp_path, way):
    train(tmp_path, 3, ["--min-workers", "1"], "every", "0:0:close", way=way)
    check(tmp_path, (1, 2), "every")


@pytest.mark.parametrize("way", ["shared", pytest.param("copies", marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_loops_of_different_lengths_are_refused_where_a_lost_step_could_not_be_taken_again(tmp_path, way, workers):
    options, arguments = ["--workers", str(workers), "--min-workers", "1"], ["joined", way, "list", "1:0:step 3"]
    code, output = run(tmp_path, options, arguments, "again_script.py")
    assert code == 1
    assert "model.join() in a job that may lose or gain workers" in output
    assert "killed" not in output
