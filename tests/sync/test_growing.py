"""Workers come and go while a job trains: nobody restarts, and the result is that of one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import growing
import numpy as np
import pytest
import torch

from gradtide.errors import ConfigError
from gradtide.processes.job_protocol import scale
from loaded_python import loaded_python

HERE = Path(__file__).parent
STEPS = 600


class Run:
    """`gradtide run` of a script that says how many work on it; its lines as they come."""

    def __init__(self, folder, options, *arguments, script="growing_script.py", steps=STEPS):
        paths = [str(HERE), str(HERE.parent / "collective"), *sys.path]
        command = [loaded_python(), "-m", "gradtide", "run", *options, str(HERE / script), str(folder)]
        self.folder, self.lines = folder, []
        self.process = subprocess.Popen(
            [*command, str(steps), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.job = re.search(r"job (run-\w+):", self.wait_for("job run-"))[1]

    def wait_for(self, text):
        """The next line that has it."""
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.lines))

    def finish(self):
        (self.folder / "hurry").touch()
        rest, _ = self.process.communicate(timeout=120)
        self.lines.append(rest)
        assert self.process.returncode == 0, "".join(self.lines)
        return "".join(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def wanted():
    return alone(STEPS)


def alone(steps):
    """What plain PyTorch in one process gives."""
    net, rule = growing.build()
    for number, (x, y) in enumerate(growing.batches(steps), 1):
        net[0].requires_grad_(number not in growing.FROZEN)
        rule.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        rule.step()
    return [p.detach().numpy() for p in net.parameters()]


def check(folder, workers, wanted):
    for worker in workers:
        found = np.load(folder / f"{worker}.npz")
        for name, value in zip(found.files, wanted, strict=True):
            assert np.abs(found[name] - value).max() < 1e-10


def test_a_job_over_collectives_grows_and_shrinks_and_nothing_shows_in_the_result(tmp_path, wanted):
    with Run(tmp_path, ["--workers", "2", "--min-workers", "1", "--max-workers", "3"], "collective") as run:
        run.wait_for("of 2 from batch")
        assert "worker 2 is started" in scale(run.job, 3)
        run.wait_for("worker 2 is 2 of 3 from batch")
        assert "workers 1, 2 will go" in scale(run.job, 1)
        run.wait_for("worker 0 is 0 of 1 from batch")
        assert "worker 3 is started" in scale(run.job, 2)
        run.wait_for("worker 3 is 1 of 2 from batch")
        with pytest.raises(ConfigError, match="it takes 1 to 3"):
            scale(run.job, 4)
        output = run.finish()
    assert "worker 1 is done" not in output
    check(tmp_path, [0, 3], wanted)


def test_a_job_over_servers_grows_and_shrinks_and_shares_follow(tmp_path, wanted):
    options = ["--workers", "2", "--servers", "2", "--min-workers", "1", "--max-workers", "3"]
    with Run(tmp_path, options, "servers") as run:
        run.wait_for("of 2 from batch")
        scale(run.job, 3)
        run.wait_for("worker 2 is 2 of 3 from batch")
        scale(run.job, 2)
        run.wait_for("worker 0 is 0 of 2 from batch")
        run.finish()
    found = [np.load(tmp_path / f"{worker}.npz") for worker in range(2)]
    for name, value in zip(found[0].files, wanted, strict=True):
        assert np.array_equal(found[0][name], found[1][name])
        assert np.abs(found[0][name] - value).max() < 1e-10


@pytest.mark.parametrize("sync", ["bsp", pytest.param("bounded:2", marks=pytest.mark.slow)])
def test_all_cut_the_first_batch_of_a_newcomer_with_it_however_late_they_hear_of_it(tmp_path, sync):
    options = ["--workers", "2", "--servers", "2", "--min-workers", "1", "--max-workers", "4"]
    with Run(tmp_path, options, sync, script="early_script.py", steps=30) as run:
        run.wait_for("waits at batch 1\n")
        scale(run.job, 3)
        run.wait_for("waits at batch 10\n")
        scale(run.job, 4)
        run.finish()
    found = [np.load(tmp_path / f"{worker}.npz") for worker in range(4)]
    assert sum(one["cut"] for one in found)[1:].tolist() == [13] * 30
    assert all(0 < one["cut"][-1] < 13 for one in found)
    if sync == "bsp":
        for index, value in enumerate(alone(30)):
            assert all(np.abs(one[f"arr_{index}"] - value).max() < 1e-10 for one in found)


@pytest.mark.slow
def test_a_job_of_local_steps_over_servers_grows_and_shrinks_and_all_end_alike(tmp_path):
    options = ["--workers", "2", "--servers", "2", "--min-workers", "1", "--max-workers", "3"]
    with Run(tmp_path, options, "local") as run:
        run.wait_for("of 2 from batch")
        scale(run.job, 3)
        came = run.wait_for("worker 2 is 2 of 3 from batch")
        assert int(came.split()[-2]) % 3 == 1  # with a window's first batch
        scale(run.job, 2)
        run.wait_for("worker 0 is 0 of 2 from batch")
        assert "worker 2 is done" not in run.finish()
    found = [np.load(tmp_path / f"{worker}.npz") for worker in range(2)]
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0].files)


def test_a_job_that_can_not_change_says_so():
    with pytest.raises(ConfigError, match="no job run-nosuch that can grow or shrink was started on this machine"):
        scale("run-nosuch", 2)
