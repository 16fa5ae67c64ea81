"""A node dies, or its wire is unplugged: workers of the other nodes go on within seconds, and nothing shows it in the
result; a node that comes later takes its place."""

import random
import re
import subprocess
import time

import nodes_script
import numpy as np
import pytest
import torch
from fleet import Fleet
from runs import LIMIT_S

from clock import at_most
from gradtide.errors import ConfigError
from gradtide.testing import hosts

STEPS = 400


@pytest.fixture
def four_hosts():
    try:
        with hosts.several_hosts(4, "") as inside:
            yield inside
    except ConfigError as error:
        pytest.skip(str(error))


def plug(inside, host, state):
    subprocess.run([*inside[host], "ip", "link", "set", hosts.INTERFACES[host], state], check=True)


def check(folder):
    """What plain PyTorch in one process gives."""
    net, rule = nodes_script.build()
    for x, y in nodes_script.batches(STEPS):
        rule.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        rule.step()
    saved = list(folder.glob("*.npz"))
    for path in saved:
        found = np.load(path)
        for name, wanted in zip(found.files, net.parameters(), strict=True):
            assert np.abs(found[name] - wanted.detach().numpy()).max() < 1e-10
    return len(saved)


def lose_a_node(inside, folder, how, batch, third="spare"):
    """Four workers, two a node. A third node takes the place of the one that is lost: a spare one, or one that is new
    then; or there is none."""
    names = ("a", "b", "c") if third == "spare" else ("a", "b")
    fleet = Fleet(
        nodes_script.__file__, (str(folder), str(STEPS)), workers=4, nodes=names, slots=2, needed=1,
        preload="gradtide.parallel.preload", host=hosts.ADDRESSES[0], inside=inside,
    )  # fmt: skip
    with fleet:
        for host, name in enumerate(names, 1):
            fleet.start(name, host)
        fleet.await_step(lambda step: step.batch >= batch and step.size == 4)
        victim = re.search(r"2 on (\w), 2 on (\w)", fleet.text)[2]
        lost_s = time.monotonic()
        if how == "kill":
            fleet.agents[victim].kill()
        else:
            plug(inside, "abc".index(victim) + 1, "down")
        after = fleet.await_step(lambda step: step.at_s > lost_s and step.size == 2)
        if third == "new":
            fleet.start("c", 3)
        if third:
            fleet.await_step(lambda step: step.at_s > after.at_s and step.size == 4)
        (folder / "hurry").touch()
        assert fleet.finish() == 0, fleet.text
        assert fleet.agents[victim].wait(LIMIT_S) == (1 if how == "unplug" else -9), "it has ended by itself"
    assert f"node {victim} is lost" in fleet.text
    assert check(folder) == (4 if third else 2), "the survivors, and those that came later"
    return after.at_s - lost_s


def test_a_node_dies_and_the_others_go_on_exactly(four_hosts, tmp_path):
    goes_on_s = lose_a_node(four_hosts, tmp_path, "kill", 5, third="")
    assert goes_on_s < at_most(5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "unplug"])
@pytest.mark.parametrize("point", range(10))
def test_at_any_point_of_a_run(four_hosts, tmp_path, how, point):
    goes_on_s = lose_a_node(four_hosts, tmp_path, how, random.Random(f"{how} {point}").randrange(1, 60))
    print(f"{how} {point}: stepped on after {goes_on_s:.2f} s")
    assert goes_on_s < 5


@pytest.mark.slow
def test_a_node_that_comes_later_takes_the_place_of_one_that_was_lost(four_hosts, tmp_path, monkeypatch):
    monkeypatch.setattr("test_regroup_hosts.STEPS", 3000)
    lose_a_node(four_hosts, tmp_path, "kill", 5, third="new")


@pytest.mark.slow
def test_a_job_that_is_not_elastic_trains_over_several_hosts_and_ends_with_a_node(four_hosts, tmp_path):
    fleet = Fleet(
        nodes_script.__file__, (str(tmp_path), str(STEPS)), workers=4, nodes=("a", "b"), slots=2,
        preload="gradtide.parallel.preload", host=hosts.ADDRESSES[0], inside=four_hosts,
    )  # fmt: skip
    with fleet:
        fleet.start("a", 1)
        fleet.start("b", 2)
        fleet.await_step(lambda step: step.batch >= 5 and step.size == 4)
        fleet.agents["b"].kill()
        assert fleet.finish() == 1
        assert fleet.agents["a"].wait(LIMIT_S) == 0
    assert "was lost with node b" in fleet.lines[-1]
