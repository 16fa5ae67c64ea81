"""A worker dies in the middle of a step; the others go on, and nothing shows it in the result."""

import os
import random
import subprocess
import sys
from pathlib import Path

import epochs_script
import numpy as np
import pytest
import torch
import training

from loaded_python import loaded_python

HERE = Path(__file__).parent
STEPS = 6


def start(folder, options, arguments, script="elastic_script.py"):
    paths = [str(HERE), str(HERE.parent / "collective"), *sys.path]
    command = [loaded_python(), "-m", "gradtide", "run", *options, str(HERE / script), str(folder)]
    return subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder, options, arguments, script="elastic_script.py"):
    process = start(folder, options, arguments, script)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.fixture(scope="module")
def wanted():
    """What two epochs of plain PyTorch in one process give."""

    def train(optimizer):
        net = training.build("mlp", torch.float64)
        rule = training.OPTIMIZERS[optimizer](net.parameters(), 0.05)
        for _ in range(2):
            for x, y in training.batches(torch.float64, STEPS):
                rule.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
                rule.step()
        return [p.detach().numpy() for p in net.parameters()]

    return {name: train(name) for name in ("sgd", "momentum", "adam")}


def check(folder, workers, wanted):
    for worker in workers:
        found = np.load(folder / f"{worker}.npz")
        for name, value in zip(found.files, wanted, strict=True):
            assert np.abs(found[name] - value).max() < 1e-10


@pytest.mark.parametrize(
    ("share", "optimizer", "victim"),
    [
        ("shared", "adam", 2),
        ("copies", "adam", 2),
        pytest.param("shared", "sgd", 0, marks=pytest.mark.slow),
        pytest.param("shared", "momentum", 1, marks=pytest.mark.slow),
    ],
)
def test_a_step_that_a_worker_did_not_live_to_finish_never_was(tmp_path, wanted, share, optimizer, victim):
    call = random.Random(f"{optimizer} {victim}").randrange(10, 40)
    if share == "copies":
        call = 3
    code, output = run(
        tmp_path, ["--workers", "3", "--min-workers", "2"], [str(STEPS), optimizer, share, f"{victim}:0:{call}"]
    )
    assert code == 0, output
    assert f"worker {victim}" in output
    check(tmp_path, [worker for worker in range(3) if worker != victim], wanted[optimizer])


def test_shares_that_follow_speed_are_found_anew_by_those_who_are_left(tmp_path, wanted):
    code, output = run(tmp_path, ["--workers", "3", "--min-workers", "2"], [str(STEPS), "adam", "balanced", "1:0:30"])
    assert code == 0, output
    assert "worker 0 takes 22 of 29 samples" in output  # the other one is three times as slow
    check(tmp_path, [0, 2], wanted["adam"])


@pytest.mark.slow
def test_who_is_started_again_gets_a_share_by_its_speed(tmp_path, wanted):
    options = ["--workers", "2", "--max-restarts", "1"]
    code, output = run(tmp_path, options, [str(STEPS), "adam", "balanced", "1:0:13"])
    assert code == 0, output
    assert "takes 19 of 29 samples" in output or "takes 20 of 29 samples" in output
    check(tmp_path, [0, 1], wanted["adam"])


def test_over_servers_a_job_that_may_lose_workers_has_no_balance(tmp_path):
    options = ["--workers", "2", "--servers", "1", "--max-restarts", "1"]
    code, output = run(tmp_path, options, [str(STEPS), "sgd", "balanced servers"])
    assert code == 1
    assert "over servers they can't in a job that may lose workers: leave balance out" in output


def test_one_after_the_other_until_one_is_left(tmp_path, wanted):
    deaths = ["1:0:11", "0:0:40"]
    code, output = run(tmp_path, ["--workers", "3", "--min-workers", "1"], [str(STEPS), "adam", "shared", *deaths])
    assert code == 0, output
    assert "one worker: there is nothing to synchronise" in output
    check(tmp_path, [2], wanted["adam"])


@pytest.mark.parametrize(
    ("share", "victim"),
    [
        ("shared", 0),
        pytest.param("shared", 1, marks=pytest.mark.slow),
        pytest.param("copies", 0, marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_started_again_gets_its_state_from_a_survivor(tmp_path, wanted, victim, share):
    deaths = [f"{victim}:0:{13 if share == 'shared' else 4}"]
    code, output = run(tmp_path, ["--workers", "2", "--max-restarts", "1"], [str(STEPS), "adam", share, *deaths])
    assert code == 0, output
    check(tmp_path, [0, 1], wanted["adam"])


def test_without_being_asked_to_go_on_the_job_ends_and_says_who_died(tmp_path):
    code, output = run(tmp_path, ["--workers", "2"], [str(STEPS), "sgd", "shared", "1:0:9"])
    assert code == 128 + 9
    assert "worker 1 was killed by SIGKILL" in output


def test_over_servers_a_worker_that_is_started_again_rejoins(tmp_path):
    options = ["--workers", "2", "--servers", "2", "--max-restarts", "1"]
    code, output = run(tmp_path, options, [str(STEPS), "momentum", "servers", "1:0:9"])
    assert code == 0, output
    assert "started again" in output
    found = [np.load(tmp_path / f"{worker}.npz") for worker in range(2)]
    for name in found[0].files:
        assert np.array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize(
    ("sync", "resumes"),
    [
        ("group", "resumes"),
        ("group", "begins anew"),
        pytest.param("servers", "resumes", marks=pytest.mark.slow),
        pytest.param("servers", "begins anew", marks=pytest.mark.slow),
    ],
)
def test_a_schedule_by_epochs_survives_a_worker_that_is_started_again(tmp_path, sync, resumes):
    """A worker that begins anew steps its schedule again, on top of the others' rate: theirs counts for all."""
    options = ["--workers", "2", "--max-restarts", "1", *(["--servers", "1"] if sync == "servers" else [])]
    code, output = run(tmp_path, options, [sync, resumes, "1"], "epochs_script.py")
    assert code == 0, output
    assert "is started again" in output
    net, rule, scheduler = epochs_script.build()
    for _ in range(epochs_script.EPOCHS):
        for x, y in training.batches(torch.float64, epochs_script.STEPS):
            rule.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            rule.step()
        scheduler.step()
    if sync == "group":
        check(tmp_path, range(2), [p.detach().numpy() for p in net.parameters()])
    else:  # what the dead worker had of a round is lost with it, but all hold the same
        check(tmp_path, range(2), list(np.load(tmp_path / "0.npz").values()))


@pytest.mark.slow
@pytest.mark.parametrize(("needed", "code"), [(1, 0), (2, 1)])
def test_who_is_started_again_when_the_others_come_to_the_end_does_not_train_alone(tmp_path, needed, code):
    options = ["--workers", "2", "--min-workers", str(needed), "--max-restarts", "3"]
    found, output = run(tmp_path, options, [], "late_script.py")
    assert found == code, output
    assert output.count("trains") == 2
    assert "worker 1 was started again when the others had come to the end" in output
