"""Clusters in files: by counts, from Slurm, from nvidia-smi's texts; and what is wrong with them, in one line."""

import pytest

from gradtide.errors import TopologyError
from gradtide.topology.files import topology_named
from gradtide.topology.formats.host_names import expand_hosts
from gradtide.topology.model import Link, NodeKind, Topology
from gradtide.topology.presets import preset
from gradtide.topology.routes import Routes

pytestmark = pytest.mark.quick

MATRIX = """\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity
GPU0\tX\tNV12\tPIX\tPIX\t0-7
GPU1\tNV12\tX\tPIX\tPIX\t0-7
NIC0\tPIX\tPIX\tX\tPIX
NIC1\tPIX\tPIX\tPIX\tX
"""
PODS = """\
name = "pods"

[[hosts]]
count = 64
kind = "dgx-h100"

[fabric]
hosts_per_leaf = 32
spines = 8
"""
MIXED = """\
[[hosts]]
count = 6
kind = "dgx-a100"

[[hosts]]
count = 2
gpus = 4
nics = 2
nic = "100 Gbit/s"
inside = "pcie"
inside_bandwidth = "16 GB/s"
pcie = "16 GB/s"

[fabric]
hosts_per_leaf = 4
rails = false
spines = 4
oversubscription = 2
bandwidth = "100 Gbit/s"

[[override]]
name = "host3.nic0"
times = 0.1

[[override]]
name = "host7.nic1"
missing = true
"""
CONF = """\
# two racks
SwitchName=s0 Nodes=tux[0-3] LinkSpeed=200
switchname=s1 nodes=tux[4-5],tux[06-07] \\
    LinkSpeed=200
SwitchName=top Switches=s[0-1]
"""


def read(tmp_path, text: str, name: str = "it.toml", **more: object) -> Topology:
    (tmp_path / name).write_text(text)
    (tmp_path / "topo.txt").write_text(MATRIX)
    return topology_named(str(tmp_path / name), **more)


def devices(topology: Topology) -> list[str]:
    return [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]


def rates(topology: Topology, source: str, to: str) -> set[float]:
    found = [link for link in topology.links if link.source == source and link.target.startswith(to)]
    return {round(link.bytes_per_s * link.count) for link in found}


def via(topology: Topology, source: str, target: str) -> list[str]:
    return [link.target for link in Routes(topology).find(source, target) or ()]


def test_a_pod_by_counts_is_the_preset(tmp_path):
    topology = read(tmp_path, PODS)
    known = preset("superpod:64")
    assert topology.nodes == known.nodes
    assert topology.links == known.links


def test_kinds_of_hosts_mix_and_overrides_change_one_nic(tmp_path):
    topology = read(tmp_path, MIXED)
    assert len(devices(topology)) == 6 * 8 + 2 * 4
    assert rates(topology, "host2.nic0", "leaf") == {25e9}
    assert rates(topology, "host3.nic0", "leaf") == {2.5e9}
    assert "host7.nic1" not in {node.name for node in topology.nodes}
    assert rates(topology, "leaf0", "spine") == {4 * 8 * 25e9 / 2 / 4}
    assert {link.wire for link in topology.links if link.source == "host6.gpu0"} == {"host6.gpu0 out"}


def test_a_number_of_hosts_can_be_changed_in_proportion(tmp_path):
    assert read(tmp_path, PODS, hosts=128).nodes == read(tmp_path, PODS.replace("64", "128")).nodes
    assert len(devices(read(tmp_path, MIXED, hosts=16))) == 2 * 56
    assert topology_named("rail:4x8x2@100", hosts=8).name == "rail:8x8x2@100"


def test_a_third_tier_joins_pods(tmp_path):
    pods = PODS + "hosts_per_pod = 32\ncores = 64\n"
    topology = read(tmp_path, pods)
    assert rates(topology, "spine3", "core") == {32 / 8 * 50e9}
    assert sum(node.name.startswith("core") for node in topology.nodes) == 64
    assert len([link for link in topology.links if link.source == "spine3" and link.target.startswith("core")]) == 8


def test_hosts_from_nvidia_smi_have_a_nic_of_their_own_for_each_gpu(tmp_path):
    topology = read(tmp_path, "node[08-10] topo.txt 200 Gbit/s\n", "hosts.list")
    assert devices(topology)[:2] == ["node08.gpu0", "node08.gpu1"]
    assert via(topology, "node08.gpu1", "node10.gpu1") == ["node08.NIC1", "leaf1", "node10.NIC1", "node10.gpu1"]
    assert rates(topology, "node09.NIC0", "leaf") == {25e9}
    by_counts = read(tmp_path, '[[hosts]]\ncount = 3\nnvidia_smi = "topo.txt"\nnic = "200 Gbit/s"\n')
    assert len(by_counts.links) == len(topology.links)


def test_slurms_tree_is_read_with_the_hosts_that_are_named(tmp_path):
    topology = read(tmp_path, CONF, "topology.conf", host_kind="dgx-a100")
    assert devices(topology)[-1] == "tux07.gpu7"
    assert via(topology, "tux0.gpu3", "tux07.gpu1") == ["tux0.nic3", "s0", "top", "s1", "tux07.nic1", "tux07.gpu1"]
    assert rates(topology, "s0", "top") == {4 * 8 * 25e9}
    assert len(devices(read(tmp_path, CONF, "topology.conf"))) == 8


def test_a_switch_of_slurm_that_says_its_speed_has_it(tmp_path):
    topology = read(tmp_path, CONF.replace("Switches=s[0-1]", "Switches=s[0-1] LinkSpeed=400"), "topology.conf")
    assert rates(topology, "s1", "top") == {50e9}


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("count = 64", "count = 0", "line 4, field 'count' of hosts 1: count must be a whole number from 1 to 16,384"),
        ("count = 64", "count = 4000", "it.toml: 32,000 devices in 4,000 hosts; a cluster has from 2 to 16,384"),
        ("dgx-h100", "dgx-h10", "line 5, field 'kind' of hosts 1: no kind of host is called 'dgx-h10'; did you mean"),
        ('kind = "dgx-h100"', "nics = 3", "line 5, field 'nics' of hosts 1: 8 GPUs can't share 3 NICs evenly"),
        ("count = 64", "cuont = 64", "line 4, field 'cuont' of hosts 1: there is no such field; did you mean 'count'?"),
        ("spines = 8", "spines = 5", "field 'spines' of fabric 1: 32 wires of a leaf don't divide among 5 spines"),
        ("spines = 8", "spines = 8\noversubscription = 3", "line 10, field 'oversubscription' of fabric 1: gives a leaf"
         " 10.67 wires up of 50 GB/s, which must be whole"),
        ("spines = 8", "rails = false", "2 leaves and no spines don't connect; add spines, or put more on a leaf"),
        ("spines = 8", "cores = 2", "line 9, field 'cores' of fabric 1: needs spines; say how many"),
        ("spines = 8", "spines = 8\ncores = 12\nhosts_per_pod = 32", "12 cores don't divide among the 8 spines"),
        ("spines = 8", "spines = 8\ncores = 8\nhosts_per_pod = 33", "33 hosts of a pod don't divide into leaves of 32"),
        ('kind = "dgx-h100"', 'nvidia_smi = "none.txt"', "line 5, field 'nvidia_smi' of hosts 1: can't read"),
        ("spines = 8", 'spines = 8\n[[override]]\nname = "host3.nic9"\ntimes = 2', "has no 'host3.nic9'; did you mean"),
        ("spines = 8", 'spines = 8\n[[override]]\nname = "leaf0"', "give either times, as 0.1, or missing = true"),
        ("[fabric]", "[[fabric]]", "write one [fabric] table"),
        ("[[hosts]]\ncount = 64\nkind = \"dgx-h100\"\n", "", "joins hosts, but no [[hosts]] are described"),
        ("count = 64\nkind = \"dgx-h100\"", "count = 1\ngpus = 1", "1 devices in 1 hosts; a cluster has from 2"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_cluster_by_counts_is_answered_in_one_line(old, new, answer, tmp_path):
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, PODS.replace(old, new))
    assert answer in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "it.toml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("Switches=s[0-1]", "Switches=s[0-2]", "line 5: switch 's2' is not described; known are s0, s1, top"),
        ("Switches=s[0-1]", "Nodes=tux9", "can't be reached from 'tux0.gpu0'"),
        ("tux[4-5]", "tux[3-5]", "line 3: 'tux3' already hangs on a switch"),
        ("tux[4-5]", "tux[5-4]", "line 3: [5-4] runs from 5 to 4; write the smaller one first"),
        ("tux[4-5]", "tux[a-b]", "line 3: [a-b] is no range of numbers; write for example [0-15,20]"),
        ("LinkSpeed=200\nsw", "LinkSpeed=fast\nsw", "line 2: LinkSpeed is taken as Gbit/s, a number such as 400"),
        ("SwitchName=top", "SwitchName=s0", "line 5: switch 's0' is there twice"),
        ("SwitchName=top ", "Switch=top ", "line 5: expected SwitchName=... with Nodes=... or Switches=..."),
        ("Switches=s[0-1]", "Swiches=s[0-1]", "line 5: topology/tree has no 'swiches'; did you mean 'switches'?"),
        ("SwitchName=top Switches=s[0-1]", "SwitchName=a Switches=b,s[0-1]\nSwitchName=b Switches=a", "hangs below"),
    ],
)  # fmt: skip
def test_a_mistake_in_slurms_file_is_answered_in_one_line(old, new, answer, tmp_path):
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, CONF.replace(old, new), "topology.conf")
    assert answer in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "topology.conf"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("node[0-3] topo.txt 200 Gb/s", "line 1: '200 Gb/s': Gb/s is ambiguous"),
        ("node[0-3] topo.txt\nnode3 topo.txt", "line 2: host 'node3' is there twice"),
        ("node[0-3] none.txt", "line 1: can't read a topology from"),
        ("node[0-3] topo.txt\nnode9", "line 2: expected hosts and a file"),
        ("node[0-3] other.txt", "line 1: other.txt: expected the output of `nvidia-smi topo -m`"),
    ],
)
def test_a_mistake_in_a_list_of_hosts_is_answered_in_one_line(text, answer, tmp_path):
    (tmp_path / "other.txt").write_text("hello\n")
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, text, "hosts.list")
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_kind_and_a_number_of_hosts_go_only_where_they_mean_something(tmp_path):
    with pytest.raises(TopologyError, match="a kind of host goes with Slurm's"):
        topology_named("ring:4", host_kind="dgx-h100")
    with pytest.raises(TopologyError, match="names its hosts one by one"):
        read(tmp_path, CONF, "topology.conf", hosts=8)
    with pytest.raises(TopologyError, match="ring:4 has no number of hosts; such have ethernet-cluster:HOSTS"):
        topology_named("ring:4", hosts=8)
    with pytest.raises(TopologyError, match="no kind of host is called 'dgx-h10'; did you mean 'dgx-h100'"):
        read(tmp_path, CONF, "topology.conf", host_kind="dgx-h10")
    with pytest.raises(TopologyError, match=r"5 hosts can't be 6 and 2 in proportion"):
        read(tmp_path, MIXED, hosts=5)


def test_names_of_hosts_expand_as_slurm_does():
    assert expand_hosts("r[0-1]n[08-10],login", "x")[:4] == ["r0n08", "r0n09", "r0n10", "r1n08"]
    assert expand_hosts("a[1,3-4]-ib", "x") == ["a1-ib", "a3-ib", "a4-ib"]
    for wrong in ("a[1", "a]", "a,,b", "", "a[0-99999]"):
        with pytest.raises(TopologyError):
            expand_hosts(wrong, "x")


def test_a_wire_without_a_switch_may_be_added_to_what_is_counted(tmp_path):
    extra = PODS + '\n[[node]]\nname = "store"\nkind = "host"\n[[link]]\nbetween = ["store", "leaf0"]\n'
    topology = read(tmp_path, extra + 'bandwidth = "50 GB/s"\nlatency = "2 us"\n')
    assert Link("store", "leaf0", 50e9, 2e-6) in topology.links
    with pytest.raises(TopologyError, match=r"field 'between' of link 1: a link names the node 'leaf99'"):
        read(tmp_path, extra.replace("leaf0", "leaf99") + 'bandwidth = "50 GB/s"\nlatency = "2 us"\n')
