"""A worker dies in the middle of a step; the others go on, and nothing shows it in the result."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import training

HERE = Path(__file__).parent
STEPS = 6


def start(folder, options, arguments):
    paths = [str(HERE), str(HERE.parent / "collective"), *sys.path]
    command = [sys.executable, "-m", "gradtide", "run", *options, str(HERE / "elastic_script.py"), str(folder)]
    return subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder, options, arguments):
    process = start(folder, options, arguments)
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
    [("shared", "sgd", 0), ("shared", "adam", 2), ("shared", "momentum", 1), ("copies", "adam", 2)],
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


def test_one_after_the_other_until_one_is_left(tmp_path, wanted):
    deaths = ["1:0:11", "0:0:40"]
    code, output = run(tmp_path, ["--workers", "3", "--min-workers", "1"], [str(STEPS), "adam", "shared", *deaths])
    assert code == 0, output
    assert "one worker: there is nothing to synchronise" in output
    check(tmp_path, [2], wanted["adam"])


@pytest.mark.parametrize(("share", "victim"), [("shared", 0), ("shared", 1), ("copies", 0)])
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
