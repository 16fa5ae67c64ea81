"""A worker of `fit` dies: the others train on, and the result is that of one process."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gradtide
from gradtide.errors import ConfigError
from gradtide.sync import Job
from gradtide.sync.job import Elastic
from loaded_python import loaded_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import dying_fit  # noqa: E402


@pytest.fixture(scope="module")
def wanted():
    parameters, history = dying_fit.train(lambda event: None, [gradtide.BestModel(restore=True)])
    return [np.array(history.test_loss), *parameters]


@pytest.mark.parametrize(
    ("workers", "deaths"),
    [
        (2, ["1:GradientsReady:4"]),  # in a step
        (2, ["1:BatchStarted:3"]),  # when the other asks over how many targets its mean is
        # when the others add up what they have seen of an epoch
        pytest.param(3, ["1:BatchDone:6"], marks=pytest.mark.slow),
        (3, ["0:EpochDone:1", "2:Waiting:15"]),  # between epochs, and in another step
        # after the last step: the others evaluate without it
        pytest.param(3, ["2:BatchDone:18"], marks=pytest.mark.slow),
    ],
)
def test_those_who_are_left_train_as_one_process_does(tmp_path, wanted, workers, deaths):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", str(workers), "--min-workers", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, str(HERE / "dying_fit.py"), str(tmp_path), *deaths],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    dead = {int(death.partition(":")[0]) for death in deaths}
    for worker in set(range(workers)) - dead:
        found = np.load(tmp_path / f"{worker}.npz")
        for name, value in zip(found.files, wanted, strict=True):
            assert np.abs(found[name] - value).max() < 1e-10, name
    with (tmp_path / "log.csv").open() as log:  # whoever is the first then writes what callbacks write once
        logged = [float(line["validation_loss"]) for line in csv.DictReader(log)]
    assert np.abs(logged - wanted[0]).max() < 1e-10
    best = load_file(tmp_path / "best.safetensors").values()
    assert all(np.abs(one.numpy() - other).max() < 1e-10 for one, other in zip(best, wanted[1:], strict=True))
    if deaths == ["1:GradientsReady:4"]:  # the fourth step comes again, and counts once
        assert np.load(tmp_path / "0.samples.npy")[:7].tolist() == [128, 128, 128, 0, 256, 256, 157]


@pytest.mark.slow
def test_a_worker_that_comes_later_is_told_what_the_run_saw_before(tmp_path, wanted):
    """So its callbacks know when the model was best, and its history is that of all."""
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", "--max-restarts", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [str(HERE / "dying_fit.py"), str(tmp_path), "1:BatchDone:7", "wait"]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for worker in range(2):
        found = np.load(tmp_path / f"{worker}.npz")
        assert all(np.abs(found[name] - value).max() < 1e-10 for name, value in zip(found.files, wanted, strict=True))


def test_checkpoints_are_refused_where_workers_may_come_and_go(tmp_path, monkeypatch):
    """Each of them would wait two minutes for a dead worker's part, and one that is started again would begin with the
    newest while the others are further."""
    monkeypatch.setattr("gradtide.train.loop._job", lambda sync: Job(size=2, elastic=Elastic("nowhere", "job", 0)))
    net, data = torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8, dtype=torch.long))
    with pytest.raises(ConfigError, match="leave --min-workers, --max-workers and --max-restarts out"):
        gradtide.fit(net, data, checkpoints=gradtide.Checkpoints(str(tmp_path / "kept"), every=1))
    assert not any(tmp_path.iterdir())
