"""Routes at any size: as short as a plain search finds them, spread over equal spines, found at once."""

import random
import time
from collections import Counter
from itertools import pairwise

import pytest

from clock import at_most
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import preset
from gradtide.topology.routes import Route, Routes
from gradtide.topology.validate import check

Cost = tuple[int, int, float]


def cost_of(route: Route) -> Cost:
    latency = sum(round(link.latency_s * 1e15) for link in route)
    return latency, len(route), -min(link.bytes_per_s * link.count for link in route)


def plain_costs(topology: Topology, source: str) -> dict[str, Cost]:
    """Bellman and Ford's search: every link again and again, until nothing gets better."""
    passes = {node.name for node in topology.nodes if node.kind is not NodeKind.DEVICE} | {source}
    best: dict[str, Cost] = {source: (0, 0, -float("inf"))}
    for _ in topology.nodes:
        for link in topology.links:
            if link.source in best and link.source in passes:
                before = best[link.source]
                width = max(before[2], -link.bytes_per_s * link.count)
                new = (before[0] + round(link.latency_s * 1e15), before[1] + 1, width)
                if new < best.get(link.target, (1 << 62, 0, 0.0)):
                    best[link.target] = new
    del best[source]
    return best


def random_wiring(seed: int) -> Topology:
    rng = random.Random(seed)
    kinds = [rng.choice([*NodeKind, NodeKind.DEVICE, NodeKind.SWITCH]) for _ in range(rng.randint(2, 11))]
    nodes = tuple(Node(f"n{i}", kind) for i, kind in enumerate(kinds))
    links = []
    for _ in range(rng.randint(len(nodes), 4 * len(nodes))):
        a, b = rng.sample([node.name for node in nodes], 2)
        rate, latency_s = rng.choice([1e9, 2e9, 5e9]), rng.choice([0, 1e-6, 1.5e-6, 2e-6])
        links.append(Link(a, b, rate, latency_s, rng.choice([1, 1, 2])))
        if rng.random() < 0.7:
            links.append(Link(b, a, rate, latency_s))
    return Topology(f"random {seed}", nodes, tuple(links))


def check_routes(topology: Topology) -> None:
    routes, names = Routes(topology), [node.name for node in topology.nodes]
    for source in names:
        costs = plain_costs(topology, source)
        for target in names:
            found = routes.find(source, target)
            assert (found is None) == (target not in costs)
            if found is not None:
                assert (found[0].source, found[-1].target) == (source, target)
                assert all(a.target == b.source for a, b in pairwise(found))
                assert cost_of(found) == costs[target], (topology.name, source, target)


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 3_000), marks=pytest.mark.slow)])
def test_no_route_is_longer_or_narrower_than_a_plain_search_finds(seeds):
    for seed in seeds:
        check_routes(random_wiring(seed))


@pytest.mark.parametrize("name", ["fat-tree:4@100", "superpod:2", "leaf-spine:3x2x1@100/2"])
def test_routes_through_a_fabric_are_as_short_as_a_plain_search_finds(name):
    check_routes(preset(name))


def wires_used(topology: Topology, pairs: list[tuple[str, str]], between: tuple[str, str]) -> Counter[tuple[str, str]]:
    routes, used = Routes(topology), Counter[tuple[str, str]]()
    for source, target in pairs:
        for link in routes.find(source, target) or ():
            if link.source.startswith(between[0]) and link.target.startswith(between[1]):
                used[link.source, link.target] += 1
    return used


@pytest.mark.parametrize("between", [("leaf", "spine"), ("spine", "core"), ("core", "spine"), ("spine", "leaf")])
def test_if_all_hosts_of_a_fat_tree_send_as_far_no_wire_carries_more_than_its_share(between):
    topology = preset("fat-tree:8@100")
    devices = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    for shift in (16, 48):  # a whole pod further, and three
        pairs = list(zip(devices, devices[shift:] + devices[:shift], strict=True))
        assert set(wires_used(topology, pairs, between).values()) == {1}


def test_a_gpu_leaves_by_its_own_rail_and_hosts_are_spread_over_the_spines():
    topology = preset("superpod:64")
    routes = Routes(topology)
    spines = set()
    for host in range(8):
        route = routes.find(f"host{host}.gpu5", f"host{host + 32}.gpu5")
        assert route is not None
        via = [link.target for link in route]
        assert via[:2] == [f"host{host}.nic5", "leaf5"]
        assert via[3:] == ["leaf13", f"host{host + 32}.nic5", f"host{host + 32}.gpu5"]
        spines.add(via[2])
    assert spines == {f"spine{i}" for i in range(8)}


def test_gpus_of_one_host_meet_on_nvswitch():
    route = Routes(preset("superpod:2")).find("host1.gpu0", "host1.gpu7")
    assert route is not None
    assert [link.target for link in route] == ["host1.nvswitch", "host1.gpu7"]


@pytest.mark.parametrize("name", ["superpod:1250", "fat-tree:34@400", "torus:21x22x22"])
def test_ten_thousand_devices_are_built_checked_and_routed_in_seconds(name):
    start = time.process_time()
    topology = check(preset(name))
    devices = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    routes = Routes(topology)
    for target in devices[1::500]:
        routes.find(devices[0], target)
    assert len(devices) > 9_800
    assert time.process_time() - start < at_most(3)
