"""Many ops are simulated by compiled code: the same digits as the interpreter's, whatever the schedule."""

import dataclasses

import numpy as np
import pytest

from gradtide.schedule.classes.compose import compose
from gradtide.schedule.classes.folded import simulate_folded
from gradtide.schedule.classes.grids import grid_of
from gradtide.schedule.model import Schedule
from gradtide.schedule.plan import request_for
from gradtide.schedule.predict import simulate as simulating
from gradtide.schedule.predict.simulate import Simulation, simulate
from gradtide.schedule.request import STRATEGIES
from gradtide.topology.files import topology_named
from gradtide.topology.model import Topology
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
