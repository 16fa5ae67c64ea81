"""`gradtide run --engine ray`: as on one machine, on several."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import training_script
from jobs import RayRun, command_of, nothing_left
from ray_cluster import Cluster

from gradtide.errors import ConfigError


@pytest.fixture(scope="module")
def pair():
    """Two nodes, for the one test of this file that every run takes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install gradtide[ray]")
    try:
        started = Cluster(2, cpus=1)
    except ConfigError as error:
        pytest.skip(str(error))
    yield started
    started.close()


def test_workers_on_two_nodes_find_each_other_and_the_first_failure_is_shown_first(pair):
    run = RayRun(pair, "--workers", 2, "failing_script.py", "--lr", "0.1")
    assert sorted(run.nodes()) == [0, 1]
    assert run.end() == 1, run.text
    for rank in range(2):
        assert f"[{rank}] rank {rank} of 2 adds up to [2.0, 2.0, 2.0]; ['--lr', '0.1']" in run.lines
    assert "[1] ValueError: boom" in run.lines
    assert run.lines[-1].startswith("gradtide: worker 1 failed with exit code 1: ValueError: boom (failing_script.py:")
    assert nothing_left(pair)


@pytest.mark.slow
def test_fifty_steps_over_servers_with_copies_are_those_of_one_process(cluster, tmp_path):
    (tmp_path / "hurry").touch()
    servers = "--servers", 2, "--replicas", 1
    run = RayRun(
        cluster, "--workers", 2, "--workers-per-node", 1, *servers, "training_script.py", tmp_path, 50, "servers"
    )
    assert len(run.nodes()) == 2
    assert run.end() == 0, run.text
    net, rule = training_script.build()
    for x, y in training_script.batches(50):
        rule.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        rule.step()
    for worker in range(2):
        found = np.load(tmp_path / f"last-{worker}.npz")["before"]
        assert np.abs(found - training_script.flat(net.parameters())).max() < 1e-10


@pytest.mark.slow
def test_ctrl_c_ends_everything_on_all_nodes(cluster, tmp_path):
    servers = "--servers", 2, "--replicas", 1
    run = RayRun(
        cluster, "--workers", 2, "--workers-per-node", 1, *servers, "training_script.py", tmp_path, 9999, "servers"
    )
    run.wait_for(r"\] step 3 ", 2)
    asked_s = time.monotonic()
    run.send(signal.SIGINT)
    assert run.end() == 130, run.text
    took_s = time.monotonic() - asked_s
    assert nothing_left(cluster), run.text
    print(f"Ctrl-C: ended after {took_s:.2f} s")
    assert took_s < 2.0 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["actor", "driver"])
def test_nothing_is_left_of_a_job_whose_actor_or_driver_is_killed(cluster, tmp_path, victim):
    servers = "--servers", 2, "--replicas", 1
    run = RayRun(
        cluster, "--workers", 2, "--workers-per-node", 1, *servers, "training_script.py", tmp_path, 9999, "servers"
    )
    nodes = run.nodes()
    run.wait_for(r"\] step 3 ", 2)
    if victim == "driver":
        run.process.kill()
        run.end()
    else:
        (actor,) = [p for p in cluster.processes(nodes[0]) if command_of(p).startswith("ray::AgentActor")]
        os.kill(actor, signal.SIGKILL)
        assert run.end() == 1, run.text
        assert "is lost" in run.text
    deadline_s = time.monotonic() + 20
    while not nothing_left(cluster):
        assert time.monotonic() < deadline_s


@pytest.mark.slow
def test_a_job_grows_to_nodes_that_ray_finds_and_shrinks_again(cluster, tmp_path):
    run = RayRun(
        cluster, "--workers", 1, "--workers-per-node", 1, "--max-workers", 3, "--min-workers", 1,
        "training_script.py", tmp_path, 2000, "group",
    )  # fmt: skip
    name = run.wait_for(r"^gradtide: job ").split()[2].rstrip(":")
    run.wait_for(r"\] step 3 of 1")
    assert scale(cluster, name, 4) == (2, "4 workers are not what this job was started for; it takes 1 to 3")
    assert scale(cluster, name, 3) == (0, "1 workers there are already, and 2 more as soon as Ray has room for them")
    run.wait_for(r"\[0\] step \d+ of 3")
    assert scale(cluster, name, 2) == (0, "worker 2 will go at the end of a step")
    run.wait_for(r"\[0\] step \d+ of 2")
    (tmp_path / "hurry").touch()
    assert run.end() == 0, run.text
    net, rule = training_script.build()
    for x, y in training_script.batches(2000):
        rule.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        rule.step()
    for worker in range(2):
        found = np.load(tmp_path / f"last-{worker}.npz")["before"]
        assert np.abs(found - training_script.flat(net.parameters())).max() < 1e-10
    assert scale(cluster, name, 2)[0] == 2


def scale(cluster, name, workers):
    """The exit code, and the beginning of what was said."""
    command = [*cluster.inside(0), sys.executable, "-m", "gradtide", "scale", name, "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, (done.stdout or done.stderr.removeprefix("gradtide: ")).strip().partition(" (--")[0]
