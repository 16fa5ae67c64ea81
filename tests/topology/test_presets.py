from collections import defaultdict

import pytest

from gradtide.errors import TopologyError
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.presets import PRESETS, preset
from gradtide.topology.routes import Routes
from gradtide.topology.validate import check

pytestmark = pytest.mark.quick


def rate_out(topology: Topology, node: str) -> float:
    return sum(link.bytes_per_s * link.count for link in topology.links if link.source == node)


def devices(topology: Topology) -> list[str]:
    return [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]


@pytest.mark.parametrize("known", PRESETS, ids=lambda known: known.form)
def test_every_preset_is_sound_and_every_link_has_an_equal_one_back(known):
    topology = check(preset(known.example))
    assert topology.name == known.example
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for link in topology.links:
        sums[link.source, link.target] += link.bytes_per_s * link.count
        assert 0 < link.latency_s < 50e-6
    assert all(sums[a, b] == sums[b, a] for a, b in list(sums))
    assert known.summary.endswith(".")


@pytest.mark.parametrize(
    ("name", "count", "bytes_per_s"),
    [
        ("pcie-4gpu", 4, 16e9),
        ("dgx1-v100", 8, 6 * 18e9),
        ("dgx1-v100-pcie", 8, 6 * 18e9 + 16e9),
        ("dgx2", 16, 150e9),
        ("dgx-a100", 8, 300e9),
        ("dgx-h100", 8, 450e9),
        ("superpod:33", 264, 450e9 + 64e9),
        ("rail:3x4x2@100", 12, 450e9 + 64e9),
        ("fat-tree:6@100", 54, 64e9),
        ("torus:3x4x2", 24, 50e9),
        ("ethernet-cluster:3x2@10", 6, 16e9),
        ("ring:5", 5, 20e9),
        ("ring:2", 2, 10e9),
        ("star:3", 3, 10e9),
    ],
)
def test_each_device_has_the_published_rate(name, count, bytes_per_s):
    topology = preset(name)
    assert len(devices(topology)) == count
    assert {rate_out(topology, device) for device in devices(topology)} == {bytes_per_s}


def test_two_gpus_behind_one_switch_of_the_dgx1_share_its_uplink():
    routes = Routes(preset("dgx1-v100-pcie"))
    first, second = routes.find("gpu1", "cpu0"), routes.find("gpu2", "cpu0")
    assert first is not None
    assert second is not None
    assert [link.source for link in first] == ["gpu1", "switch0"]
    assert first[-1] is second[-1]


def test_a_message_between_hosts_of_a_cluster_goes_through_both_nics():
    route = Routes(preset("ethernet-cluster:2x2@100")).find("host0.gpu0", "host1.gpu1")
    assert route is not None
    assert [link.target for link in route] == [
        "host0.pcie", "host0.nic", "ethernet", "host1.nic", "host1.pcie", "host1.gpu1"
    ]  # fmt: skip
    assert min(link.bytes_per_s for link in route) == 12.5e9


def test_the_hub_of_a_star_may_aggregate():
    assert [n.name for n in preset("star:3").nodes if n.kind is NodeKind.HOST] == ["hub"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ring:x", "'ring:x' is not of the form ring:N; write for example ring:8"),
        ("ring", "'ring' is not of the form ring:N; write for example ring:8"),
        ("ring:1", "ring: N must be from 2 to 16384, not 1"),
        ("ring:-3", "ring: N must be from 2 to 16384, not -3"),
        ("star:50000", "star: N must be from 2 to 16384, not 50000"),
        ("rign:4", "no topology is called 'rign:4'; did you mean ring:N?"),
        ("dgx1-v10", "no topology is called 'dgx1-v10'; did you mean dgx1-v100?"),
        ("ethernet-cluster:4x8@0", "ethernet-cluster: GBITS must be above 0 and at most 100000, not 0"),
        ("ethernet-cluster:1x1@10", "ethernet-cluster: HOSTS x GPUS must be from 2 to 16384, not 1"),
        ("ethernet-cluster:2x65@10", "ethernet-cluster: GPUS must be from 1 to 64, not 65"),
    ],
)
def test_a_wrong_preset_is_answered_with_a_right_one(name, text):
    with pytest.raises(TopologyError) as caught:
        preset(name)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rail:4x8x3@100", "rail:4x8x3@100: 8 GPUS can't share 3 NICS evenly; take 1, 2, 4, 8, 16 NICS"),
        ("rail:1x1x1@100", "rail:1x1x1@100: 1 devices in 1 hosts; a cluster has from 2 to 16,384"),
        ("superpod:2049", "superpod: HOSTS must be from 1 to 2048, not 2049"),
        ("fat-tree:5@100", "fat-tree: K must be even, since half of a switch's ports lead up; not 5"),
        ("fat-tree:4", "'fat-tree:4' is not of the form fat-tree:K@GBITS; write for example fat-tree:4@100"),
        ("torus:1x4", "torus: up to 6 sides of 2 or more, 16,384 devices in all; not 1x4"),
        ("leaf-spine:4x8x4@100/0", "leaf-spine: OVER must be from 1 to 64, not 0"),
    ],
)
def test_counts_that_make_no_cluster_are_refused_in_one_line(name, text):
    with pytest.raises(TopologyError) as caught:
        preset(name)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "leaf", "down", "up"),
    [
        ("superpod:64", "leaf0", 32 * 50e9, 32 * 50e9),
        ("superpod:300", "leaf70", 32 * 50e9, 32 * 50e9),
        ("leaf-spine:32x8x4@200/4", "leaf1", 16 * 4 * 25e9, 16 * 25e9),
        ("fat-tree:6@100", "leaf3", 3 * 12.5e9, 3 * 12.5e9),
    ],
)
def test_a_leaf_sends_up_what_its_hosts_send_over_the_oversubscription(name, leaf, down, up):
    topology = preset(name)
    ends = [(link.target, link.bytes_per_s * link.count) for link in topology.links if link.source == leaf]
    assert sum(rate for target, rate in ends if ".nic" in target) == down
    assert sum(rate for target, rate in ends if target.startswith("spine")) == up
