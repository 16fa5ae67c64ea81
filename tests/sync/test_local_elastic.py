"""Local steps in jobs that lose and gain workers: what one process gives that plays them and loses the same ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import local_elastic
import numpy as np
import pytest
import torch
from test_random_jobs import play
from torch.nn import functional

from gradtide.processes.job_protocol import scale
from gradtide.testing.local_oracle import LocalPlan, MemberChange, play_local
from loaded_python import loaded_python

HERE = Path(__file__).parent


def plan(changes, after=0):
    return LocalPlan(4, local_elastic.OUTER, after, changes)


def start(folder, options, *arguments):
    paths = [str(HERE), str(HERE.parent / "collective"), *sys.path]
    script = str(HERE / "local_elastic_script.py")
    return subprocess.Popen(
        [loaded_python(), "-m", "gradtide", "run", *options, script, str(folder), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder, options, *arguments, code=0):
    process = start(folder, options, *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    return output


def check(folder, workers, size, epochs, played, within=0.0):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        net, _ = local_elastic.build(normed=not played.after)
        made = play_local(
            net,
            local_elastic.optimizer,
            functional.mse_loss,
            local_elastic.batches() * epochs,
            size,
            played,
        )
    finally:
        torch.set_num_threads(threads)
    wanted = [p.detach().numpy() for p in made.parameters()]
    assert {path.name for path in folder.glob("*.npz")} == {f"{worker}.npz" for worker in workers}
    for worker in workers:
        found = np.load(folder / f"{worker}.npz")
        assert max(np.abs(found[name] - value).max() for name, value in zip(found.files, wanted, strict=True)) <= within


def test_workers_that_die_in_a_window_or_a_meeting_are_lost_at_that_boundary(tmp_path):
    """Worker 3 in the middle of a window; worker 0 when a meeting has ended for it and worker 1, but worker 2 does not
    know it yet, and is told; worker 1 between the all-reduces of a meeting."""
    places = ["3:0:step2", "0:0:left2@1,2", "2:0:lost-left2", "1:0:meet4.3"]
    run(tmp_path, ["--workers", "4", "--min-workers", "1"], 2, 4, 0, "loader", *places)
    check(
        tmp_path,
        [2],
        4,
        2,
        plan({4: MemberChange(dies=(3,)), 12: MemberChange(dies=(0,)), 16: MemberChange(dies=(0,))}),
    )


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        (0, "look2"),
        pytest.param(1, "looked2", marks=pytest.mark.slow),
        pytest.param(0, "looked2@1", marks=pytest.mark.slow),
        pytest.param(2, "look2@0", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_worker_that_dies_where_all_look_whether_they_are_alike_is_lost_at_that_boundary(
    tmp_path, workers, victim, moment
):
    victim = min(victim, workers - 1)
    run(tmp_path, ["--workers", f"{workers}", "--min-workers", "1"], 1, 4, 0, "loader", f"{victim}:0:{moment}")
    stay = {*range(workers)} - {victim}
    check(tmp_path, stay, workers, 1, plan({8: MemberChange(dies=(victim,))}))


@pytest.mark.parametrize(
    ("options", "places"),
    [
        (["--workers", "3", "--min-workers", "2"], ["1:0:step2", "2:0:edit-step6"]),
        pytest.param(
            ["--workers", "2", "--max-restarts", "1"], ["0:0:look1", "0:1:edit-step2"], marks=pytest.mark.slow
        ),
        (["--workers", "3", "--max-restarts", "1"], ["1:0:edit-step2", "2:0:look1"]),
    ],
)
def test_a_parameter_that_differs_is_refused_at_the_meeting_in_jobs_that_lose_workers_too(tmp_path, options, places):
    output = run(tmp_path, options, 8, 4, 0, "list", *places, code=1)
    assert "beside is no longer the same on all workers" in output
    assert "closes" not in output


@pytest.mark.parametrize("source", ["loader", pytest.param("list", marks=pytest.mark.slow)])
def test_a_survivor_that_is_ahead_waits_at_the_boundary_and_batches_stay_cut_as_they_were(tmp_path, source):
    """Worker 0 dies after a meeting; worker 1 finds it at once, and worker 2 at the end of the window."""
    places = ["0:0:left2@1,2", "1:0:lost-left2", "2:0:step19"]
    run(tmp_path, ["--workers", "3", "--min-workers", "1"], 2, 4, 0, source, *places)
    check(tmp_path, [1], 3, 2, plan({12: MemberChange(dies=(0,)), 20: MemberChange(dies=(1,))}))


def test_a_worker_that_is_started_again_begins_from_the_base_at_the_boundary(tmp_path):
    output = run(tmp_path, ["--workers", "3", "--max-restarts", "1"], 2, 4, 0, "loader", "1:0:step2")
    assert "worker 1 comes after batch 4" in output
    check(tmp_path, [0, 1, 2], 3, 2, plan({4: MemberChange(dies=(1,), comes=1)}))


def test_workers_come_and_go_at_boundaries_and_those_who_go_give_what_they_have(tmp_path):
    (tmp_path / "slowly").touch()
    lines = []
    with start(tmp_path, ["--workers", "1", "--min-workers", "1", "--max-workers", "2"], 30, 4, 0, "list") as process:

        def wait_for(text):
            for line in process.stdout:
                lines.append(line)
                if found := re.search(text, line):
                    return found[1]
            raise AssertionError("".join(lines))

        try:
            job = wait_for(r"job (run-\w+):")
            wait_for(r"(worker 0 has begun)")
            scale(job, 2)
            came = int(wait_for(r"worker 0 is one of 2 after batch (\d+)"))
            scale(job, 1)
            went = int(wait_for(r"worker 0 is one of 1 after batch (\d+)"))
            (tmp_path / "slowly").unlink()
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert came % 4 == went % 4 == 0
    check(tmp_path, [0], 1, 30, plan({came: MemberChange(comes=1), went: MemberChange(goes=(1,))}))


STEPS, EPOCHS = {"schedule": "OneCycleLR"}, {"schedule": "CosineAnnealingLR", "accumulates": 3}


@pytest.mark.parametrize(
    ("program", "workers", "more"),
    [
        (STEPS, 2, {"deaths": ["0:0:end 9"], "options": ["--max-restarts", "1"]}),
        (EPOCHS, 3, {"deaths": ["1:0:loss 8", "1:1:end 1"], "options": ["--max-restarts", "2"]}),
        ({**STEPS, "evaluates": True}, 3, {"deaths": ["2:0:backward 1"], "scale": ["0:0:end 1:4"]}),
    ],
)
def test_one_who_comes_finds_schedules_where_the_others_have_them(tmp_path, program, workers, more):
    """It comes when the program has done with the batch, so all that the others keep of it is in model.state."""
    case = {
        "way": "local",
        "local": {"every": 2},
        "workers": workers,
        "program": {"optimizer": "momentum", "loader": "shuffled", **program},
        "left": None if "scale" in more else range(workers),
        "options": ["--max-workers", "4", "--min-workers", "1"],
        **more,
    }
    assert play(tmp_path, case) is None


def test_one_that_dies_while_steps_are_taken_together_shows_in_nothing(tmp_path):
    run(tmp_path, ["--workers", "3", "--min-workers", "2"], 1, 4, 3, "list", "0:0:step2")
    check(tmp_path, [1, 2], 2, 1, plan({}, after=3), within=1e-9)


def test_a_worker_that_is_started_again_while_steps_are_taken_together_takes_them_too(tmp_path):
    output = run(tmp_path, ["--workers", "3", "--max-restarts", "1"], 1, 4, 6, "list", "1:0:step2")
    assert int(re.search(r"worker 1 comes after batch (\d+)", output)[1]) < 6
    check(tmp_path, [0, 1, 2], 3, 1, plan({}, after=6), within=1e-9)
