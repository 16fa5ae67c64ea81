import itertools
import time

import numpy as np
import pytest
from scipy.optimize import linprog

from gradtide.errors import TopologyError
from gradtide.schedule.bound import bound
from gradtide.schedule.model import Collective
from gradtide.schedule.packing.arborescence import least_costs, minimum_arborescences
from gradtide.schedule.packing.network import network_of
from gradtide.schedule.request import Request
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import both_ways, preset

pytestmark = pytest.mark.quick

MB = 1_000_000


def ask(topology: Topology, size: int = 160 * MB, collective: Collective = "all_reduce", root: int = 0) -> Request:
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    return Request(topology, devices, size, collective, root)


def on_a_switch(devices: int, hosts: int, bytes_per_s: float = 1e9) -> Topology:
    nodes = [Node(f"d{i}", NodeKind.DEVICE) for i in range(devices)] + [
        Node(f"h{i}", NodeKind.HOST) for i in range(hosts)
    ]
    links = [link for node in nodes for link in both_ways(node.name, "s", bytes_per_s, 1e-6)]
    return Topology("switch", (*nodes, Node("s", NodeKind.SWITCH)), tuple(links))


def scattered(seed: int, devices: int, hosts: int = 0) -> Topology:
    """Devices in a random ring, hosts between two devices each, and as many other links as there are nodes."""
    chance = np.random.default_rng(seed)
    nodes = [Node(f"d{i}", NodeKind.DEVICE) for i in range(devices)] + [
        Node(f"h{i}", NodeKind.HOST) for i in range(hosts)
    ]
    names = [node.name for node in nodes]
    order = chance.permutation(devices)
    pairs = {(names[a], names[b]) for a, b in zip(order, np.roll(order, 1), strict=True)}
    for host in names[devices:]:
        a, b = chance.choice(devices, 2, replace=False)
        pairs |= {(names[a], host), (host, names[b])}
    for _ in names:
        a, b = chance.choice(len(names), 2, replace=False)
        pairs.add((names[a], names[b]))
    links = [Link(a, b, float(chance.integers(1, 9)) * 1e9, 1e-6) for a, b in sorted(pairs)]
    return Topology(f"scattered-{seed}", tuple(nodes), tuple(links))


def by_flows(request: Request) -> float:
    """The same optimum as flows: root weights, and for each device a unit of flow from the roots and one to them."""
    network = network_of(request)
    arcs, nodes, devices = len(network.tails), len(network.nodes), network.devices
    count = 1 + nodes + 2 * arcs + 2 * devices * arcs  # seconds, weights, capacity each way, flows each way
    balance = np.zeros((nodes, arcs))
    balance[network.heads, np.arange(arcs)] += 1.0
    balance[network.tails, np.arange(arcs)] -= 1.0
    equal, equals, less = [], [], []
    total = np.zeros(count)
    total[1 : 1 + nodes] = 1.0
    equal.append(total)
    equals.append(1.0)
    for wire, rate in zip(network.wire_load, network.bytes_per_s, strict=True):
        row = np.zeros(count)
        row[0] = -rate / 1e9
        row[1 + nodes : 1 + nodes + 2 * arcs] = np.tile(wire, 2)
        less.append(row)
    for way, device in itertools.product((0, 1), range(devices)):
        first = 1 + nodes + 2 * arcs + (way * devices + device) * arcs
        for node in range(nodes):
            row = np.zeros(count)
            row[first : first + arcs] = balance[node] * (1, -1)[way]
            row[1 + node] = 1.0
            equal.append(row)
            equals.append(float(node == device))
        for arc in range(arcs):
            row = np.zeros(count)
            row[first + arc], row[1 + nodes + way * arcs + arc] = 1.0, -1.0
            less.append(row)
    goal = np.zeros(count)
    goal[0] = 1.0
    answer = linprog(goal, A_ub=np.array(less), b_ub=np.zeros(len(less)), A_eq=np.array(equal), b_eq=equals)
    return float(answer.fun) * request.size_bytes / 1e9


def test_a_host_that_aggregates_makes_pcie_faster_than_the_devices_alone():
    assert bound(ask(preset("pcie-4gpu"))).seconds == pytest.approx(40e-3 / 3, rel=1e-9)
    assert bound(ask(on_a_switch(4, 0, 16e9))).seconds == pytest.approx(15e-3, rel=1e-9)


def test_nothing_beats_the_two_rings_of_the_dgx1():
    found = bound(ask(preset("dgx1-v100")))
    assert found.seconds == pytest.approx(14 / 8 * 160e6 / (6 * 18e9), rel=1e-9)
    assert found.exact
    assert sum(found.root_weights.values()) == pytest.approx(1)
    assert all(found.utilisation[wire] == pytest.approx(1) for wire in found.tight)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 0), (3, 2), (4, 1), (5, 3), (6, 4), (8, 1), (8, 4), (12, 2)])
def test_the_mixed_optimum_of_gpu_and_cpu_machines_is_met(n: int, k: int):
    optimum = 2 * n * (n - 1) / (n * n + k * n - 2 * k)
    assert bound(ask(on_a_switch(n, k), 10**9)).seconds == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_packing_trees_and_sending_flows_have_the_same_optimum(seed: int):
    request = ask(scattered(seed, 3 + seed % 4, seed % 2), 10**9)
    found = bound(request)
    assert found.exact
    assert found.seconds == pytest.approx(by_flows(request), rel=1e-7)


def test_twice_the_all_gather_is_not_a_bound_on_a_hub_with_three_leaves():
    names = [f"d{i}" for i in range(4)]
    links = [link for leaf in names[1:] for link in both_ways("d0", leaf, 1e9, 1e-6)]
    hub = Topology("hub", tuple(Node(name, NodeKind.DEVICE) for name in names), tuple(links))
    assert bound(ask(hub, 10**9)).seconds == pytest.approx(1.0)  # all up to the hub and down again, both at once
    assert bound(ask(hub, 10**9)).root_weights == pytest.approx({"d0": 1.0})
    assert 2 * bound(ask(hub, 10**9, "all_gather")).seconds == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("collective", "parts"), [("reduce_scatter", 7 / 8), ("all_gather", 7 / 8), ("reduce", 1), ("broadcast", 1)]
)
def test_the_other_collectives_on_a_ring_and_on_a_switch(collective: Collective, parts: float):
    assert bound(ask(preset("ring:8"), 10**10, collective)).seconds == pytest.approx(parts / 2)
    assert bound(ask(on_a_switch(8, 0), 10**9, collective, 3)).seconds == pytest.approx(parts)


def test_a_broadcast_may_leave_a_weak_device_for_last_but_must_enter_it():
    links = [*both_ways("a", "b", 4e9, 1e-6), *both_ways("b", "c", 1e9, 1e-6)]
    chain = Topology("chain", tuple(Node(name, NodeKind.DEVICE) for name in "abc"), tuple(links))
    found = bound(ask(chain, 10**9, "broadcast"))
    assert found.seconds == pytest.approx(1.0)
    assert found.tight == ("b->c",)


def test_links_of_one_wire_share_its_capacity():
    both = [Link("a", "b", 1e9, 1e-6, wire="bus"), Link("b", "a", 1e9, 1e-6, wire="bus")]
    bus = Topology("bus", (Node("a", NodeKind.DEVICE), Node("b", NodeKind.DEVICE)), tuple(both))
    assert bound(ask(bus, 10**9)).seconds == pytest.approx(2.0)


def test_devices_that_were_not_asked_for_take_no_part():
    request = Request(preset("dgx1-v100"), ("gpu1", "gpu2", "gpu3"), 36 * MB)
    assert bound(request).seconds == pytest.approx(1e-3)  # 1-2-3 is a chain of doubled links: all up to gpu2 and back
    with pytest.raises(TopologyError, match="gpu1 sends can reach gpu3"):
        bound(Request(preset("dgx1-v100"), ("gpu1", "gpu3"), MB))


def test_one_device_or_no_bytes_take_no_time():
    assert bound(Request(preset("dgx1-v100"), ("gpu1",), MB)).seconds == 0
    assert bound(Request(preset("dgx1-v100"), ("gpu1", "gpu2"), 0)).seconds == 0


def test_a_large_cluster_gets_a_bound_by_counting_that_a_ring_meets():
    found = bound(ask(preset("ring:64"), 10**10))
    assert found.seconds == pytest.approx(63 / 64)
    assert not found.exact
    assert bound(ask(preset("ring:48"), 10**10)).seconds == pytest.approx(47 / 48)  # packed, not counted


@pytest.mark.parametrize("name", ["dgx2", "ethernet-cluster:2x8@100"])
def test_sixteen_devices_are_solved_in_well_under_a_second(name: str):
    began = time.process_time()
    assert bound(ask(preset(name))).exact
    assert time.process_time() - began < 1.0


def test_minimum_arborescences_are_those_of_a_full_search():
    chance = np.random.default_rng(5)
    for n in (2, 3, 4, 5):
        costs = chance.integers(0, 6, (20, n, n)).astype(float)
        found, parents = minimum_arborescences(costs)
        for b in range(20):
            trees = [tree for tree in itertools.product(range(n), repeat=n - 1) if _is_tree(tree)]
            least = min(sum(costs[b, v + 1, u] for v, u in enumerate(tree)) for tree in trees)
            assert found[b] == least
            assert _is_tree(tuple(parents[b, 1:]))
        assert least_costs(costs, np.ones((20, n), dtype=bool)) == pytest.approx(found)


def _is_tree(parents: tuple[int, ...]) -> bool:
    """Whether each of the nodes 1, 2, … reaches node 0 through these parents."""

    def steps(node: int) -> int:
        for step in range(len(parents) + 1):
            if node == 0:
                return step
            node = parents[node - 1]
        return -1

    return all(steps(node) >= 0 for node in range(1, len(parents) + 1))
