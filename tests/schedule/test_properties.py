"""Every strategy, everywhere: right, never faster than the bound; and packed trees close to it."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradtide.schedule import strategies
from gradtide.schedule.bound import bound
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.verify import verify
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import preset

assert strategies.__all__

LARGE = 10_000_000_000
COLLECTIVES = ("reduce_scatter", "all_gather", "broadcast", "reduce")
CROSSED = "ethernet-cluster:2x4@100"  # every wire is full and every route crosses others: the hardest to pack
PLACES = (
    "pcie-4gpu",
    "dgx1-v100",
    "dgx1-v100-pcie",
    "dgx2",
    "dgx-h100",
    CROSSED,
    "ring:6",
    "star:6",
    "ethernet-cluster:3x2@100",
)
LARGER = ("ethernet-cluster:2x8@100", "ethernet-cluster:3x4@100", "ethernet-cluster:4x4@25", "ethernet-cluster:4x4@100")


def check(request: Request, tight: float) -> float:
    """All that applies verifies and is no faster than the bound; packed-trees, whose ratio it gives, within `tight`."""
    lower = bound(request).seconds
    assert lower > 0
    ratios = {}
    for name, build in STRATEGIES.items():
        try:
            schedule = build(request)
        except NotApplicable:
            continue
        verify(schedule)
        seconds = simulate(schedule, request.topology, request.size_bytes).seconds
        assert seconds >= lower * (1 - 1e-6), name
        if name == "packed-trees":
            assert seconds <= lower * tight
        ratios[name] = seconds / lower
    return ratios["packed-trees"]


FEW = ("pcie-4gpu", "dgx1-v100", "ethernet-cluster:2x2@100")


@pytest.mark.parametrize(
    ("place", "collective"),
    [
        *((place, "all_reduce") for place in PLACES),
        *(pytest.param(place, "all_reduce", marks=pytest.mark.slow) for place in LARGER),
        *itertools.product(FEW, COLLECTIVES),
    ],
)
def test_on_every_preset_no_strategy_beats_the_bound(place: str, collective: str):
    topology = preset(place)
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    check(Request(topology, devices, LARGE, collective), 1.05)  # type: ignore[arg-type]


@st.composite
def wirings(draw: st.DrawFn, hubs: tuple[NodeKind, ...] = ()) -> Topology:
    """Devices on a random tree or a one-way circle, with more links, one-way or both; some also on a hub."""
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
    if hubs:
        nodes.append(Node("hub", draw(st.sampled_from(hubs))))
        for name in draw(st.lists(st.sampled_from(names), min_size=2, unique=True)):
            join(name, "hub", draw(speed))
            join("hub", name, draw(speed))
    return Topology("random", tuple(nodes), tuple(links.values()))


def ask(topology: Topology) -> Request:
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    return Request(topology, devices, LARGE)


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_on_random_wirings_no_strategy_beats_the_bound_and_packed_trees_come_close(examples: int):
    ratios = []

    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(wirings(), wirings(hubs=(NodeKind.SWITCH, NodeKind.HOST))))
    def collect(topology: Topology) -> None:
        ratios.append(check(ask(topology), 1.05))

    collect()
    assert len(ratios) == examples
