import pytest

from gradtide.schedule import strategies
from gradtide.schedule.build.rings import find_rings
from gradtide.schedule.build.wiring import wiring_of
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.verify import verify
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import preset

pytestmark = pytest.mark.quick

assert strategies.__all__

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
PLACES = (
    "pcie-4gpu",
    "dgx1-v100",
    "dgx1-v100-pcie",
    "dgx2",
    "dgx-h100",
    "ethernet-cluster:3x3@25",
    "ethernet-cluster:4x2@100",
    "ring:5",
    "ring:2",
    "star:7",
)


def asked(name: str, size_bytes: int, collective: str = "all_reduce", root: int = 0) -> Request:
    topology = preset(name)
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    return Request(topology, devices, size_bytes, collective, root)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "name", "milliseconds"),
    [
        ("pcie-4gpu", "root", 60.0),
        ("pcie-4gpu", "host", 80.0),
        ("pcie-4gpu", "sharded", 15.0),
        ("pcie-4gpu", "ring", 15.0),
        ("dgx1-v100", "rings-one-way", 160e6 * 2 * 7 / 8 / (3 * 18e9) * 1e3),
        ("dgx1-v100", "rings", 160e6 * 2 * 7 / 8 / (6 * 18e9) * 1e3),
    ],
)
def test_the_textbook_s_figures_hold(place: str, name: str, milliseconds: float):
    request = asked(place, 160_000_000)
    schedule = STRATEGIES[name](request)
    bare = simulate(schedule, request.topology, request.size_bytes, latency=False)
    assert bare.seconds * 1e3 == pytest.approx(milliseconds, rel=1e-9)
    assert simulate(schedule, request.topology, request.size_bytes).seconds * 1e3 == pytest.approx(
        milliseconds, rel=0.01
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("place", PLACES)
def test_every_strategy_that_applies_verifies(place: str, collective: str):
    applied = set()
    for size_bytes in (4_000, 100_000_000):
        request = asked(place, size_bytes, collective, root=1)
        for name, build in STRATEGIES.items():
            if name == "packed-trees":
                continue  # test_properties.py packs on every preset: once is enough, for it takes its time
            try:
                schedule = build(request)
            except NotApplicable:
                continue
            assert schedule.name == name
            proof = verify(schedule)
            assert 0 < proof.steps <= len(schedule.ops)
            applied.add(name)
    assert "tree" in applied


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("place", PLACES)
def test_each_rank_owns_one_equal_stretch_of_the_buffer_in_the_order_of_ranks(place: str, collective: str):
    request = asked(place, 10_000_000, collective)
    for build in STRATEGIES.values():
        try:
            schedule = build(request)
        except NotApplicable:
            continue
        assert list(schedule.owners) == sorted(schedule.owners)
        shares = [0] * schedule.contributors
        for owner, weight in zip(schedule.owners, schedule.weights, strict=True):
            shares[owner] += weight
        assert len(set(shares)) == 1


def test_a_dgx1_holds_a_double_and_a_single_ring_both_ways():
    request = asked("dgx1-v100", 1)
    found = find_rings(wiring_of(request), both_ways=True)
    assert [round(ring.bytes_per_s / 18e9) for ring in found] == [2, 2, 1, 1]
    names = [tuple(request.devices[rank] for rank in ring.order) for ring in found]
    double = tuple(f"gpu{i}" for i in (1, 2, 3, 4, 5, 6, 7, 8))
    single = tuple(f"gpu{i}" for i in (1, 4, 6, 3, 5, 8, 2, 7))

    def turned(order: tuple[str, ...]) -> set[tuple[str, ...]]:
        return {order, (order[0], *order[:0:-1])}

    assert set(names[:2]) == turned(double)
    assert set(names[2:]) == turned(single)
    one_way = find_rings(wiring_of(request), both_ways=False)
    assert [round(ring.bytes_per_s / 18e9) for ring in one_way] == [2, 1]


def test_rings_on_a_full_mesh_use_every_link():
    names = [f"gpu{i}" for i in range(5)]
    links = tuple(Link(a, b, 10e9, 0.0) for a in names for b in names if a != b)
    mesh = Topology("mesh", tuple(Node(name, NodeKind.DEVICE) for name in names), links)
    found = find_rings(wiring_of(Request(mesh, tuple(names), 1)), both_ways=True)
    assert sum(ring.bytes_per_s for ring in found) == pytest.approx(40e9)


def test_a_strategy_that_does_not_apply_says_why():
    request = asked("dgx1-v100", 1000)
    with pytest.raises(NotApplicable, match="no host has a route"):
        STRATEGIES["host"](request)
    with pytest.raises(NotApplicable, match="not every pair of devices has a direct route"):
        STRATEGIES["sharded"](request)
    corner = Request(request.topology, ("gpu1", "gpu3", "gpu2"), 1000)
    with pytest.raises(NotApplicable, match="form no ring"):
        STRATEGIES["ring"](corner)
    assert verify(STRATEGIES["tree"](corner)).steps > 0


def test_small_buffers_travel_in_one_piece_and_large_ones_in_many():
    small, large = (STRATEGIES["tree"](asked("pcie-4gpu", size)) for size in (4_000, 100_000_000))
    assert len(small.weights) == 1
    assert len(large.weights) == 64


def test_servers_stand_in_machines_of_their_own_where_there_are_some():
    topology = preset("ethernet-cluster:3x2@25")
    request = Request(topology, ("host0.gpu0", "host0.gpu1", "host1.gpu0", "host1.gpu1"), 1_000_000)
    schedule = STRATEGIES["servers"](request)
    assert schedule.ranks[4:] == ("host0.cpu", "host1.cpu", "host2.cpu")
    adders = {op.dst for op in schedule.ops if op.kind == "reduce" and op.dst >= 4}
    assert {schedule.ranks[rank] for rank in adders} == {"host2.cpu"}
