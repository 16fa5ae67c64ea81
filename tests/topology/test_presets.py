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
        ("dgx-h100", 8, 450e9),
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
        ("ring:1", "ring: N must be from 2 to 4096, not 1"),
        ("ring:-3", "ring: N must be from 2 to 4096, not -3"),
        ("star:5000", "star: N must be from 2 to 4096, not 5000"),
        ("rign:4", "no topology is called 'rign:4'; did you mean ring:N?"),
        ("dgx1-v10", "no topology is called 'dgx1-v10'; did you mean dgx1-v100?"),
        ("ethernet-cluster:4x8@0", "ethernet-cluster: GBITS must be above 0 and at most 100000, not 0"),
        ("ethernet-cluster:1x1@10", "ethernet-cluster: HOSTS x GPUS must be from 2 to 4096, not 1"),
        ("ethernet-cluster:2x65@10", "ethernet-cluster: GPUS must be from 1 to 64, not 65"),
    ],
)
def test_a_wrong_preset_is_answered_with_a_right_one(name, text):
    with pytest.raises(TopologyError) as caught:
        preset(name)
    assert str(caught.value) == text
