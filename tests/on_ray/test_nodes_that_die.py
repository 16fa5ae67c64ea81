"""A node of Ray's dies, or its wire is unplugged, in the middle of training: the others go on, exactly."""

import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
import training_script
from jobs import RayRun

pytestmark = pytest.mark.slow
STEPS = 1000  # more than it comes to before it is told to hurry
GOES_ON_S = 5.0
STEP = re.compile(r"\[\d\] step \d+ of (\d) at ([\d.]+)")


@pytest.fixture
def whole_cluster(cluster):
    """Every node is there again for who comes next."""
    broken = []
    yield cluster, broken
    for verb, node in broken:
        if verb == "unplug":
            cluster.tell(f"plug {node}")
        cluster.tell(f"kill {node}")
        cluster.tell(f"start {node}")
        cluster.settle()


def train(cluster, broken, folder, how, verb, seed):
    """The run, which lost a node once it had taken a random number of steps; the step and when."""
    draw = random.Random(seed)
    servers = ["--servers", 2, "--replicas", 1] if how == "servers" else []
    run = RayRun(
        cluster, "--workers", 2, "--workers-per-node", 1, "--min-workers", 1, *servers,
        "training_script.py", folder, STEPS, how,
    )  # fmt: skip
    victim = draw.choice([node for node in run.nodes() if node])
    run.wait_for(rf"\] step {draw.randrange(5, 40)} ", 2)
    broken.append((verb, victim))
    at_s = cluster.tell(f"{verb} {victim}")["at_s"]
    run.wait_for(r"is lost")
    run.wait_for(r"worker 2 is started on node")
    run.wait_for(r"\[2\] step \d+ of 2 ", 3)
    (folder / "hurry").touch()
    assert run.end() == 0, run.text
    return run, at_s


def pause_after(run, at_s):
    """The longest time between two steps of the survivor from then on, until it has stepped by itself."""
    (survivor,) = {line[1] for line in run.lines if re.match(r"\[[01]\] done", line)}
    found = [STEP.match(line) for line in run.lines if line.startswith(f"[{survivor}] step ")]
    steps = [(float(step[2]), int(step[1])) for step in found]
    before = max(at for at, _ in steps if at <= at_s)
    alone = min(at for at, size in steps if at > at_s and size == 1)
    times = [at for at, _ in steps if before <= at <= alone]
    return int(survivor), max(later - earlier for earlier, later in pairwise(times))


@pytest.mark.parametrize("verb", ["kill", "unplug"])
@pytest.mark.parametrize("seed", range(10))
def test_over_collectives_the_result_is_that_of_one_process(whole_cluster, tmp_path, verb, seed):
    run, at_s = train(*whole_cluster, tmp_path, "group", verb, seed)
    survivor, pause_s = pause_after(run, at_s)
    print(f"{verb} {seed} over collectives: the survivor's next step came after {pause_s:.2f} s")
    assert pause_s < GOES_ON_S
    net, rule = training_script.build()
    for x, y in training_script.batches(STEPS):
        rule.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        rule.step()
    for worker in (survivor, 2):
        found = np.load(tmp_path / f"last-{worker}.npz")["before"]
        assert np.abs(found - training_script.flat(net.parameters())).max() < 1e-10


@pytest.mark.parametrize("verb", ["kill", "unplug"])
@pytest.mark.parametrize("seed", range(10))
def test_over_servers_every_round_is_what_its_members_gave(whole_cluster, tmp_path, verb, seed):
    run, at_s = train(*whole_cluster, tmp_path, "servers", verb, seed)
    survivor, pause_s = pause_after(run, at_s)
    print(f"{verb} {seed} over servers: the survivor's next step came after {pause_s:.2f} s")
    assert pause_s < GOES_ON_S
    victim, last = 1 - survivor, np.load(tmp_path / f"last-{survivor}.npz")["before"]
    assert np.array_equal(last, np.load(tmp_path / "last-2.npz")["before"])
    replay(tmp_path, survivor, victim, last)


def replay(folder, survivor, victim, last):
    """Every round, from what it began with: with all that its workers gave, but for the victim's last, of which each
    shard has either everything or nothing."""
    rounds = sorted(
        int(path.name.partition("-")[0]) for path in folder.glob(f"*-{survivor}.npz") if path.name[0] != "l"
    )
    assert rounds == list(range(1, STEPS + 1))
    notes = [{w: dict(np.load(f)) for w in (0, 1, 2) if (f := folder / f"{r}-{w}.npz").exists()} for r in rounds]
    final = max(r for r, seen in zip(rounds, notes, strict=True) if victim in seen)
    momentum = np.zeros_like(last)
    for number, seen in zip(rounds, notes, strict=True):
        before = seen[survivor]["before"]
        after = notes[number][survivor]["before"] if number < STEPS else last
        some = [mixed(seen, set(seen))] + ([mixed(seen, {survivor})] if number == final else [])
        stepped = [0.5 * momentum + gradient for gradient in some]
        close = [np.abs(before - training_script.RATE * one - after) < 1e-12 for one in stepped]
        assert np.logical_or.reduce(close).all(), f"round {number} is not what {sorted(seen)} gave"
        momentum = np.select(close, stepped)


def mixed(seen, members):
    total = sum(seen[w]["weight"] for w in members)
    return sum(seen[w]["weight"] * seen[w]["gradient"] for w in members) / total
