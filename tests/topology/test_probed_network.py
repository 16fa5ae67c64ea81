"""What is built from measurements between hosts: a NIC a host that all of its ranks share."""

from itertools import permutations

import pytest

from gradtide.topology.model import NodeKind
from gradtide.topology.probe.fit import Fit
from gradtide.topology.probe.network import HostRates, build_network
from gradtide.topology.routes import Routes

LATE_S = 60e-6


def network(hosts, ranks=2, pair=10e6, together=None, slow=(), inside_s=5e-6):
    """Of so many hosts, each pair alone at `pair` bytes/s; `slow`: hosts all of whose pairs have a tenth."""
    names = [f"host{number}" for number in range(hosts)]
    machines = {f"rank{at}": names[at // ranks] for at in range(hosts * ranks)}
    inside = {(a, b): Fit(inside_s, 1e9, 1.0) for a, b in permutations(machines, 2) if machines[a] == machines[b]}
    between = {(a, b): Fit(LATE_S, pair / 10 if {a, b} & set(slow) else pair, 1.0) for a, b in permutations(names, 2)}
    rates = {name: HostRates(*(together or {}).get(name, (pair, pair))) for name in names}
    return build_network(machines, inside, between, rates)


def rate(topology, source, target):
    return next(link.bytes_per_s for link in topology.links if (link.source, link.target) == (source, target))


def test_all_ranks_of_a_host_share_its_nic_whomever_they_send_to():
    topology = network(4)
    routes = Routes(topology)
    ways = [routes.find("rank0", other) for other in ("rank2", "rank4", "rank6")] + [routes.find("rank1", "rank2")]
    out = [next(link for link in way if link.source == "host0.nic") for way in ways]
    assert {(link.target, link.bytes_per_s) for link in out} == {("network", 10e6)}
    assert sum(link.latency_s for link in ways[0]) == pytest.approx(LATE_S)


def test_two_hosts_are_joined_nic_to_nic():
    topology = network(2)
    assert not any(node.kind is NodeKind.SWITCH for node in topology.nodes)
    assert rate(topology, "host0.nic", "host1.nic") == 10e6


def test_routes_inside_a_host_stay_there_however_late_they_were_on_a_busy_machine():
    way = Routes(network(3, inside_s=5e-3)).find("rank0", "rank1")
    assert [(link.source, link.target) for link in way] == [("rank0", "rank1")]


def test_rates_that_differ_by_noise_alone_make_no_host_different():
    together = {"host0": (10.4e6, 9.8e6), "host1": (9.7e6, 10.3e6), "host2": (10e6, 10e6)}
    topology = network(3, together=together)
    assert {rate(topology, f"host{number}.nic", "network") for number in range(3)} == {10e6}
    assert {rate(topology, "network", f"host{number}.nic") for number in range(3)} == {10e6}


def test_one_slow_host_makes_the_others_no_slower():
    """While all send, everybody waits for it; alone, the others' pairs are ten times as fast."""
    slow = dict.fromkeys((f"host{number}" for number in range(4)), (1.2e6, 1.2e6))
    topology = network(4, together=slow, slow=("host3",))
    assert rate(topology, "host0.nic", "network") == 10e6
    assert rate(topology, "host3.nic", "network") == rate(topology, "network", "host3.nic") == 1.2e6


def test_pairs_that_get_less_than_their_nics_have_each_a_link_and_the_nic_is_still_one_wire():
    """As in clouds that give each connection a part of the wire."""
    topology = network(3, pair=5e6, together=dict.fromkeys((f"host{n}" for n in range(3)), (10e6, 10e6)))
    assert rate(topology, "host0.nic", "host1.nic") == 5e6
    legs = {link.wire: link.bytes_per_s for link in topology.links if link.wire}
    assert legs == {f"{way} host{n}": 10e6 for n in range(3) for way in ("out of", "into")}
