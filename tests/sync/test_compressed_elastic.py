"""Workers that compress come, go and die: what is left out is sent once, whatever becomes of a step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradtide.processes.job_protocol import scale
from loaded_python import loaded_python

HERE = Path(__file__).parent


def start(folder, options, *arguments):
    paths = [str(HERE), str(HERE.parent / "collective"), *sys.path]
    command = [loaded_python(), "-m", "gradtide", "run", *options, str(HERE / "compressed_script.py"), str(folder)]
    return subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check(folder, ended, *, alone=False):
    """Over all workers: what was given is what moved the parameters and what those who are left have."""
    given = [np.load(file) for file in sorted(folder.glob("given-*.npz"))]
    left = [np.load(folder / f"left-{number}.npz") for number in ended]
    moved = [np.load(folder / f"moved-{number}.npz") for number in ended]
    for name in given[0].files:
        assert all(np.array_equal(other[name], moved[0][name]) for other in moved)
        off = moved[0][name] + sum(one[name] for one in left) - sum(one[name] for one in given)
        assert np.abs(off).max() < 1e-9
    assert any(one[name].any() for one in left for name in one.files) != alone


@pytest.mark.parametrize(("compress", "deaths"), [("topk:0.1", ["0:3"]), ("onebit", ["2:4", "1:7"])])
def test_a_step_that_a_worker_did_not_live_to_finish_leaves_what_was_left_out_as_it_was(tmp_path, compress, deaths):
    process = start(tmp_path, ["--workers", "4", "--min-workers", "1"], "9", compress, *deaths)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("with it what compression had left out of its gradients so far") == 1, output
    dead = {int(death[0]) for death in deaths}
    check(tmp_path, sorted({0, 1, 2, 3} - dead))


def test_local_steps_lose_nothing_but_what_died_in_a_window_or_a_meeting(tmp_path):
    """Worker 3 in the middle of the first window, worker 2 in the third meeting, which the others begin again."""
    deaths = ["3:step2", "2:3"]
    process = start(tmp_path, ["--workers", "4", "--min-workers", "1"], "14", "topk:0.1", *deaths, "local3")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("with it what compression had left out of its gradients so far") == 1, output
    check(tmp_path, [0, 1])


WAYS = {
    "every step": ([], []),
    "local steps": ([], ["local3"]),
    "servers": (["--servers", "1"], ["servers"]),
}


@pytest.mark.parametrize("way", ["every step", "local steps", pytest.param("servers", marks=pytest.mark.slow)])
def test_who_goes_leaves_what_it_had_left_out_to_one_who_stays_or_sends_it(tmp_path, way):
    options, arguments = WAYS[way]
    options = ["--workers", "2", "--min-workers", "1", "--max-workers", "3", *options]
    process = start(tmp_path, options, "600", "topk:0.1", "slow", *arguments)
    lines = []

    def wait_for(text):
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(lines))

    try:
        job = re.search(r"job (run-\w+):", wait_for("job run-"))[1]
        scale(job, 3)
        wait_for("worker 2 is 2 of 3")
        scale(job, 2)
        wait_for("worker 0 is 0 of 2")
        scale(job, 1)
        wait_for("worker 0 is 0 of 1")
        scale(job, 2)
        wait_for("worker 3 is 1 of 2")
        (tmp_path / "hurry").touch()
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 0, "".join([*lines, rest])
    finally:
        process.kill()
        process.communicate()
    check(tmp_path, [0, 3])


@pytest.mark.parametrize("arguments", [[], pytest.param(["local3"], marks=pytest.mark.slow)])
def test_who_is_told_to_go_after_others_handed_over_stays_until_it_has_too(tmp_path, arguments):
    options = ["--workers", "2", "--min-workers", "1", "--max-workers", "3"]
    process = start(tmp_path, options, "600", "topk:0.1", "slow", "held", *arguments)
    lines = []

    def wait_for(text):
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(lines))

    try:
        job = re.search(r"job (run-\w+):", wait_for("job run-"))[1]
        wait_for("worker 0 has begun")
        scale(job, 3)
        wait_for("would ask")
        scale(job, 1)
        wait_for("worker 0 is 0 of 1")
        (tmp_path / "hurry").touch()
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 0, "".join([*lines, rest])
    finally:
        process.kill()
        process.communicate()
    check(tmp_path, [0], alone=True)
