"""Every strategy, everywhere: right, never faster than the bound; and packed trees close to it."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradtide.schedule import strategies
from gradtide.schedule.bound import bound
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.simulate import simulate
from gradtide.schedule.verify import verify
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import preset

assert strategies.__all__

LARGE = 1_000_000_000
COLLECTIVES = ("reduce_scatter", "all_gather", "broadcast", "reduce")
PLACES = (
    "pcie-4gpu",
    "dgx1-v100",
    "dgx1-v100-pcie",
    "dgx2",
    "dgx-h100",
    "ethernet-cluster:2x4@100",
    "ring:6",
    "star:6",
)

CROWDED = ("ethernet-cluster:2x4@100",)  # nearly all wires are full and routes cross: 12 % above the bound


def check(request: Request, tight: float | None) -> None:
    """All that applies verifies and is no faster than the bound; packed-trees is within `tight` of it."""
    lower = bound(request).seconds
    assert lower > 0
    names = set()
    for name, build in STRATEGIES.items():
        try:
            schedule = build(request)
        except NotApplicable:
            continue
        verify(schedule)
        seconds = simulate(schedule, request.topology, request.size_bytes).seconds
        assert seconds >= lower * (1 - 1e-6), name
        if name == "packed-trees" and tight:
            assert seconds <= lower * tight
        names.add(name)
    assert "packed-trees" in names


FEW = ("pcie-4gpu", "dgx1-v100", "ethernet-cluster:2x2@100")


@pytest.mark.parametrize(
    ("place", "collective"),
    [*((place, "all_reduce") for place in PLACES), *itertools.product(FEW, COLLECTIVES)],
)
def test_on_every_preset_no_strategy_beats_the_bound(place: str, collective: str):
    topology = preset(place)
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    near = 1.15 if place in CROWDED else 1.05
    check(Request(topology, devices, LARGE, collective), near if collective == "all_reduce" else None)  # type: ignore[arg-type]


@st.composite
def wirings(draw: st.DrawFn) -> Topology:
    """Devices on a random tree or a one-way circle, with more links, one-way or both, some through a switch or host."""
    count = draw(st.integers(3, 12))
    names = [f"gpu{i}" for i in range(count)]
    speed = st.sampled_from([5e9, 10e9, 18e9, 36e9])
    links: dict[tuple[str, str], Link] = {}

    def join(a: str, b: str, bytes_per_s: float) -> None:
        links.setdefault((a, b), Link(a, b, bytes_per_s, 2e-6))

    if draw(st.booleans()):
        for at in range(count):
            join(names[at], names[(at + 1) % count], draw(speed))
    else:
        for at in range(1, count):
            parent, width = names[draw(st.integers(0, at - 1))], draw(speed)
            join(names[at], parent, width)
            join(parent, names[at], draw(speed) if draw(st.booleans()) else width)
    for a, b in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=2 * count)):
        if a != b:
            join(a, b, draw(speed))
    nodes = [Node(name, NodeKind.DEVICE, f"m{at * 2 // count}") for at, name in enumerate(names)]
    kind = draw(st.sampled_from([None, NodeKind.SWITCH, NodeKind.HOST]))
    if kind is not None:
        nodes.append(Node("hub", kind))
        for name in draw(st.lists(st.sampled_from(names), min_size=2, unique=True)):
            join(name, "hub", draw(speed))
            join("hub", name, draw(speed))
    return Topology("random", tuple(nodes), tuple(links.values()))


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(wirings())
def test_on_random_wirings_no_strategy_beats_the_bound_and_packed_trees_come_close(topology: Topology):
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    check(Request(topology, devices, LARGE), 1.05)
