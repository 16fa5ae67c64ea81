"""Many ops are simulated by compiled code: the same digits as the interpreter's, whatever the schedule."""

import dataclasses
import random

import numpy as np
import pytest

from gradtide.schedule.classes.compose import compose
from gradtide.schedule.classes.folded import simulate_folded
from gradtide.schedule.classes.grids import grid_of
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.plan import request_for
from gradtide.schedule.predict import simulate as simulating
from gradtide.schedule.predict.simulate import Simulation, simulate
from gradtide.schedule.request import STRATEGIES
from gradtide.topology.files import topology_named
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.what_if import altered


@pytest.fixture(params=[1, 10**9], ids=["compiled", "interpreted"])
def runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulating, "MANY", request.param)


def both(monkeypatch: pytest.MonkeyPatch, schedule: Schedule, topology: Topology, latency: bool) -> list[Simulation]:
    found = []
    for many in (1, 10**9):
        monkeypatch.setattr(simulating, "MANY", many)
        found.append(simulate(schedule, topology, 10**7 + 3, latency=latency))
    return found


def assert_same(one: Simulation, other: Simulation) -> None:
    for field in dataclasses.fields(Simulation):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b), field.name


@pytest.mark.parametrize("latency", [True, False])
@pytest.mark.parametrize(
    ("name", "degrade", "strategy"),
    [
        ("mixed:1+1", "", "balanced-rails"),
        ("superpod:2", "host1.nic0=0.1", "balanced-rails"),
        ("dgx1-v100", "", "packed-trees"),
        ("dgx1-v100-pcie", "", "sharded"),
        ("pcie-4gpu", "", "host"),
        ("ethernet-cluster:2x4@100", "", "rings"),
        ("torus:3x3", "", "packed-trees"),
    ],
)
def test_compiled_and_interpreted_simulations_agree_in_every_digit(
    monkeypatch: pytest.MonkeyPatch, name: str, degrade: str, strategy: str, latency: bool
) -> None:
    topology = altered(topology_named(name), [], [degrade] if degrade else [])
    schedule = STRATEGIES[strategy](request_for(topology, 10**7 + 3))
    assert_same(*both(monkeypatch, schedule, topology, latency))


@pytest.mark.parametrize("seed", range(40))
def test_they_agree_on_ops_and_links_of_any_kind(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    topology = any_topology(chance)
    assert_same(*both(monkeypatch, any_schedule(chance, topology), topology, latency=chance.random() < 0.8))


def any_topology(chance: random.Random) -> Topology:
    """Devices and a host on two switches; links with latencies or none, some on one wire, which a route takes twice."""
    names = [f"d{at}" for at in range(chance.randint(2, 6))]
    nodes = [*(Node(name, NodeKind.DEVICE) for name in names), Node("h", NodeKind.HOST)]
    nodes += [Node(name, NodeKind.SWITCH) for name in ("s0", "s1")]
    latencies = chance.choice([[0.0], [0.0, 1e-6], [1e-18, 1e-6], [1e-6 * chance.random() for _ in range(5)]])
    rates = chance.choice([[1e9], [1e9, 2e9], [1.0, 1e15], [1e9 * chance.random() + 1 for _ in range(5)]])
    ends = [(name, chance.choice(["s0", "s1"])) for name in (*names, "h")] + [("s0", "s1")]
    links = [
        Link(
            *way, chance.choice(rates), chance.choice(latencies), chance.randint(1, 3), chance.choice(["", "w0", "w1"])
        )
        for end in ends
        for way in (end, end[::-1])
    ]
    return Topology("any", tuple(nodes), tuple(links))


def any_schedule(chance: random.Random, topology: Topology) -> Schedule:
    """Ops that need not add up to anything, in several lanes of few pairs."""
    ranks = tuple(node.name for node in topology.nodes if node.kind in (NodeKind.DEVICE, NodeKind.HOST))
    weights = tuple(chance.choice([1, 1, 3, 10**9]) for _ in range(chance.randint(1, 6)))
    lanes, most, ops = chance.choice([1, 2, 20]), chance.choice([0, 1, 3]), list[Op]()
    for at in range(chance.randint(1, 120)):
        source, target = chance.sample(range(chance.choice([2, len(ranks)])), 2)
        deps = tuple(chance.randrange(at) for _ in range(chance.randint(0, most))) if at else ()
        chunk = chance.randrange(len(weights))
        ops.append(Op(at, source, target, chunk, "copy", deps, chance.randrange(lanes)))
    return Schedule("any", "all_reduce", ranks, len(ranks) - 1, weights, tuple(ops))


def test_classes_of_links_are_simulated_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for("rail:4x4x2@100", 10**7)
    schedule, found = compose(request, "hierarchical-direct").schedule, []
    for many in (1, 10**9):
        monkeypatch.setattr(simulating, "MANY", many)
        found.append(simulate_folded(schedule, grid_of(request).routes, 10**7)[0])
    assert_same(*found)


def test_an_empty_list_takes_no_time(runs: None) -> None:
    schedule = STRATEGIES["ring"](request_for("pcie-4gpu", 100))
    empty = dataclasses.replace(schedule, ops=())
    assert simulate(empty, topology_named("pcie-4gpu"), 100).seconds == 0.0
