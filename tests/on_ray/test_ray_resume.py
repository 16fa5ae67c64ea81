"""A job on Ray that lost its driver, or its driver's node: nothing is left of it, and `--resume` goes on exactly."""

import time

import fitting_script
import numpy as np
import pytest
from jobs import RayRun, nothing_left, once_forgotten

pytestmark = pytest.mark.slow
ENDS_S = 60.0


@pytest.fixture(scope="module")
def alone():
    return fitting_script.train("auto")


@pytest.mark.parametrize(("victim", "how"), [("driver", "servers"), ("driver", "group"), ("node", "servers")])
def test_a_job_that_lost_its_driver_goes_on_exactly(cluster, tmp_path, alone, victim, how):
    lose_the_driver(cluster, tmp_path, victim, how)
    (tmp_path / "hurry").touch()
    run = once_forgotten(lambda: job(cluster, tmp_path, how, driver=0))
    assert run.end() == 0, run.text
    first = min(int(line.rpartition(" ")[2]) for line in run.lines if "] step " in line)
    assert first % 10 == 1, run.text
    assert first > 20, "it goes on with the newest checkpoint"
    for rank in range(2):
        assert np.abs(np.load(tmp_path / f"last-{rank}.npy") - alone).max() < 1e-10


def job(cluster, folder, how, driver):
    servers = ["--servers", 2, "--replicas", 1] if how == "servers" else []
    options = [*servers, "--checkpoints", folder / "ck", "--resume"]
    return RayRun(
        cluster, "--workers", 2, "--workers-per-node", 1, *options, "fitting_script.py", folder, how, driver=driver
    )


def lose_the_driver(cluster, folder, victim, how):
    """Once there are two checkpoints. What is left on other nodes ends by itself."""
    driver = 1 if victim == "node" else 0
    run = job(cluster, folder, how, driver)
    run.wait_for(r"\] step 25", 2)
    lost_s = time.monotonic()
    if victim == "node":
        cluster.tell("kill 1")
    else:
        run.process.kill()
    run.end()
    while not nothing_left(cluster):
        assert time.monotonic() < lost_s + ENDS_S
    print(f"{victim}, {how}: nothing is left after {time.monotonic() - lost_s:.1f} s")
    if victim == "node":
        cluster.tell("start 1")
