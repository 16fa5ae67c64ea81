"""The bound is never below a simple cut, and no simple cut is above what a packing of trees takes."""

from dataclasses import replace

import numpy as np
import pytest

from gradtide.errors import TopologyError
from gradtide.schedule.bound import bound
from gradtide.schedule.cuts.crossing import cuts, tightest
from gradtide.schedule.model import Collective
from gradtide.schedule.request import Request
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import both_ways, preset

GB = 10**9
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


def ask(topology: Topology, collective: Collective = "all_reduce", size: int = GB, root: int = 0) -> Request:
    devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
    return Request(topology, devices, size, collective, root)


def random_cluster(seed: int, most_devices: int = 9) -> Topology:
    """Machines of one to three devices on a PCIe switch, some with a host, some on a bus; one or two leaves."""
    chance = np.random.default_rng(seed)
    nodes: list[Node] = [Node("leaf0", NodeKind.SWITCH), Node("leaf1", NodeKind.SWITCH)]
    links: list[Link] = both_ways("leaf0", "leaf1", float(chance.integers(1, 9)) * 1e9, 1e-6)
    left = int(chance.integers(2, most_devices + 1))
    for m in range(left):
        inside = min(left, int(chance.integers(1, 4)))
        left -= inside
        names = [f"m{m}.d{i}" for i in range(inside)]
        nodes += [Node(name, NodeKind.DEVICE, f"m{m}") for name in names]
        if chance.random() < 0.3:
            nodes.append(Node(f"m{m}.cpu", NodeKind.HOST, f"m{m}"))
            names.append(f"m{m}.cpu")
        nodes += [Node(f"m{m}.s", NodeKind.SWITCH, f"m{m}"), Node(f"m{m}.nic", NodeKind.NIC, f"m{m}")]
        for name in names:
            rate = float(chance.integers(1, 9)) * 1e9
            wire = f"{name} bus" if chance.random() < 0.2 else ""
            links += [replace(link, wire=wire) for link in both_ways(name, f"m{m}.s", rate, 1e-6)]
        links += both_ways(f"m{m}.s", f"m{m}.nic", 16e9, 1e-6)
        links += both_ways(f"m{m}.nic", f"leaf{chance.integers(2)}", float(chance.integers(1, 9)) * 1e9, 1e-6)
        if not left:
            break
    return Topology(f"random-{seed}", tuple(nodes), tuple(links))


def check_cluster(seed: int) -> None:
    topology = random_cluster(seed)
    chance = np.random.default_rng(seed)
    collective = COLLECTIVES[seed % 5]
    found = bound(ask(topology, collective))
    assert found.exact
    for cut in cuts(ask(topology, collective)):
        assert cut.seconds_per_byte * GB <= found.seconds * (1 + 1e-6), cut.reason
    at = int(chance.integers(len(topology.links)))
    faster = replace(topology.links[at], bytes_per_s=topology.links[at].bytes_per_s * 2)
    links = (*topology.links[:at], faster, *topology.links[at + 1 :])
    assert bound(ask(replace(topology, links=links), collective)).seconds <= found.seconds * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_no_cut_is_above_the_best_packing_and_no_faster_link_makes_the_bound_grow(seed: int):
    check_cluster(seed)


@pytest.mark.slow
def test_no_cut_is_above_the_best_packing_on_a_thousand_clusters():
    for seed in range(100, 1100):
        check_cluster(seed)


@pytest.mark.parametrize("seed", range(5))
def test_cuts_of_large_clusters_fall_when_any_link_gets_faster(seed: int):
    chance = np.random.default_rng(seed)
    topology = preset(f"ethernet-cluster:{chance.integers(8, 40)}x8@{chance.integers(10, 400)}")
    found = bound(ask(topology)).seconds
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * (2 if chance.random() < 0.1 else 1)) for link in topology.links
    )
    faster = bound(ask(replace(topology, links=links))).seconds
    slower = replace(topology, links=tuple(replace(link, bytes_per_s=link.bytes_per_s / 2) for link in links))
    assert faster <= found * (1 + 1e-12)
    assert bound(ask(slower)).seconds == pytest.approx(2 * faster)


def test_eight_hosts_must_send_fourteen_buffers_through_their_nics():
    found = bound(ask(preset("ethernet-cluster:8x8@100"), size=160_000_000))
    assert found.seconds == pytest.approx(22.4e-3)
    assert found.reason == "8 machines must send 14 times the buffer in all"
    assert set(found.tight) == {f"host{i}.nic->ethernet" for i in range(8)}


def test_the_links_inside_a_slow_machine_bind_although_others_are_faster():
    """Eight GPUs with 300 GB/s on NVSwitch and a NIC of 25 GB/s each; all else is a ninth: 16 buffers at 2.8 TB/s."""
    assert bound(ask(preset("mixed:2+6"))).seconds == pytest.approx(16 * GB / 2.8e12)


def test_a_narrow_uplink_of_a_rack_is_found():
    nodes, links = [Node("spine", NodeKind.SWITCH)], []
    for rack in range(8):
        leaf = f"leaf{rack}"
        nodes.append(Node(leaf, NodeKind.SWITCH))
        links += both_ways(leaf, "spine", 1e9, 1e-6)
        for host in range(8):
            name, nic = f"r{rack}h{host}.gpu", f"r{rack}h{host}.nic"
            nodes += [Node(name, NodeKind.DEVICE, f"r{rack}h{host}"), Node(nic, NodeKind.NIC, f"r{rack}h{host}")]
            links += [*both_ways(name, nic, 16e9, 1e-6), *both_ways(nic, leaf, 10e9, 1e-6)]
    found = bound(ask(Topology("racks", tuple(nodes), tuple(links))))
    assert found.seconds == pytest.approx(14 / 8)
    assert found.reason == "8 racks must send 14 times the buffer in all"


def test_a_large_fabric_that_does_not_connect_is_refused_in_one_line():
    topology = preset("ethernet-cluster:8x8@100")
    links = tuple(link for link in topology.links if "host3.nic" not in (link.source, link.target))
    with pytest.raises(TopologyError, match="no link leads there"):
        bound(ask(replace(topology, links=links)))


def test_a_bus_carries_both_ways_together():
    links = [Link(a, b, 1e9, 1e-6, wire=f"bus {max(a, b)}") for d in "123" for a, b in (("s", d), (d, "s"))]
    topology = Topology("bus", (*(Node(d, NodeKind.DEVICE) for d in "123"), Node("s", NodeKind.SWITCH)), tuple(links))
    assert tightest(ask(topology)).seconds_per_byte * 1e9 <= bound(ask(topology)).seconds * (1 + 1e-9)
