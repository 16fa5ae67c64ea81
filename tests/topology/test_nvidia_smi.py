import pytest

from gradtide.errors import TopologyError
from gradtide.topology.files import topology_named
from gradtide.topology.formats.nvidia_smi import parse_nvidia_smi
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.rates import WireRates
from gradtide.topology.routes import Routes

pytestmark = pytest.mark.quick

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

DGX1 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_2\tmlx5_1\tmlx5_3\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\tPIX\tSYS\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\tSYS\tPHB\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\tSYS\tPIX\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\tSYS\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tPHB\tSYS
mlx5_2\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X \tSYS\tPHB
mlx5_1\tPHB\tPHB\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\tPHB\tSYS\t X \tSYS
mlx5_3\tSYS\tSYS\tSYS\tSYS\tPHB\tPHB\tPIX\tPIX\tSYS\tPHB\tSYS\t X
"""

WORKSTATION = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PIX     PHB     SYS     0-15    0               N/A
GPU1    PIX      X      PHB     SYS     0-15    0               N/A
GPU2    PHB     PHB      X      SYS     0-15    0               N/A
GPU3    SYS     SYS     SYS      X      16-31   1               N/A
"""

UNDERLINED = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPXB\tPXB\tNODE\t0-31\t0\t\tN/A
GPU1\tPXB\t X \tPIX\tNODE\t0-31\t0\t\tN/A
NIC0\tPXB\tPIX\t X \tNODE\t\t\t\t
NIC1\tNODE\tNODE\tNODE\t X \t\t\t\t
""" + LEGEND + """
NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""  # fmt: skip


def read(text: str, **options) -> Topology:
    return parse_nvidia_smi(text, "topo.txt", "box", **options)


def path(topology: Topology, source: str, target: str) -> list[str]:
    route = Routes(topology).find(source, target)
    assert route is not None
    return [link.target for link in route][:-1]


def nvlinks(gpus: int, count: int) -> str:
    rows = ["\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\tCPU Affinity"]
    rows += [
        "\t".join([f"GPU{i}", *(" X " if i == j else f"NV{count}" for j in range(gpus)), "0-7"]) for i in range(gpus)
    ]
    return "\n".join(rows)


def test_a_dgx1_has_six_nvlinks_a_gpu_two_cpus_and_four_switches():
    box = read(DGX1 + LEGEND)
    nv = [link for link in box.links if link.source.startswith("gpu") and link.target.startswith("gpu")]
    for i in range(8):
        assert sum(link.count for link in nv if link.source == f"gpu{i}") == 6
    assert {link.bytes_per_s for link in nv} == {25e9}
    kinds = [node.kind for node in box.nodes]
    assert [kinds.count(k) for k in NodeKind] == [8, 2, 4, 4]  # devices, hosts, switches, NICs
    assert path(box, "gpu0", "gpu1") == []
    assert path(box, "gpu0", "mlx5_0") == ["switch0"]
    assert path(box, "gpu0", "gpu5") == ["switch0", "cpu0", "cpu1", "switch2"]
    assert path(box, "gpu0", "mlx5_1") == ["switch0", "cpu0", "switch1"]


def test_a_pcie_workstation_becomes_the_tree_its_distances_say():
    box = read(WORKSTATION + LEGEND)
    assert path(box, "gpu0", "gpu1") == ["switch0"]
    assert path(box, "gpu0", "gpu2") == ["switch0", "cpu0"]
    assert path(box, "gpu2", "gpu3") == ["cpu0", "cpu1"]
    assert len(box.nodes) == 4 + 1 + 2


def test_underlined_headers_nics_and_host_bridges_are_understood():
    box = read(UNDERLINED)
    assert path(box, "gpu1", "NIC0") == ["switch1"]
    assert path(box, "gpu0", "gpu1") == ["switch0", "switch1"]
    assert path(box, "gpu1", "NIC1") == ["switch1", "switch0", "bridge0", "cpu0"]
    assert [node.name for node in box.nodes if node.kind is NodeKind.NIC] == ["NIC0", "NIC1"]


def test_more_nvlinks_than_a_gpu_has_mean_a_switch():
    box = read(nvlinks(8, 18))
    out = [link for link in box.links if link.source == "gpu3" and link.target == "nvswitch"]
    assert [(link.count, link.bytes_per_s) for link in out] == [(18, 25e9)]
    assert path(box, "gpu0", "gpu7") == ["nvswitch"]
    direct = read(nvlinks(4, 4))  # four A100s: twelve links each, four to each peer
    assert path(direct, "gpu0", "gpu3") == []
    switched = read(nvlinks(4, 6), nvswitch=True)  # a quarter of a DGX-2
    assert path(switched, "gpu0", "gpu3") == ["nvswitch"]


def test_gpus_that_only_show_nvlinks_share_a_cpu_by_affinity():
    box = read(nvlinks(2, 4))
    assert [node.name for node in box.nodes if node.kind is NodeKind.HOST] == ["cpu0"]


def test_rates_are_an_option():
    box = read(DGX1, rates=WireRates(nvlink=20e9, pcie=32e9))
    assert {link.bytes_per_s for link in box.links} == {20e9, 32e9, 38.4e9}


def test_gpus_that_no_path_joins_are_refused():
    with pytest.raises(TopologyError, match=r"topo.txt: .*device 'gpu1' can't be reached from 'gpu0'"):
        read(WORKSTATION, pcie=False)
    apart = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV1\tN/A\nGPU1\tNV1\tX\tN/A\nGPU2\tN/A\tN/A\tX\n"
    with pytest.raises(TopologyError, match="device 'gpu2' can't be reached"):
        read(apart)


def test_a_nic_with_nvlinks_is_refused():
    with pytest.raises(TopologyError, match="line 2, column NIC0: NV2, but only GPUs have NVLinks"):
        read("\tGPU0\tNIC0\nGPU0\tX\tNV2\nNIC0\tNV2\tX\n")


def test_a_saved_text_is_recognised_by_its_content(tmp_path):
    (tmp_path / "topo.txt").write_text(UNDERLINED)
    assert topology_named(str(tmp_path / "topo.txt")).name == "topo"


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("GPU1    PIX ", "GPU1    PXX ", "topo.txt, line 3, column GPU0: expected NV1, NV2, … or PIX, PXB"),
        ("GPU1    PIX ", "GPU1    PXB ", "GPU0 to GPU1 is PIX, but GPU1 to GPU0 is PXB; they must agree"),
        ("GPU1    PIX ", "GPU9    PIX ", "topo.txt, line 3: 'GPU9' is no column of the header; did you mean"),
        ("GPU3    SYS     SYS     SYS      X      16-31   1               N/A\n", "", "GPU3 is in the header"),
        ("PHB     PHB      X      SYS     0-15    0               N/A", "PHB", "GPU2 has 1 columns, but"),
        ("GPU1    PIX      X ", "GPU1    PIX      PIX ", "line 3, column GPU1: expected X, not 'PIX'"),
        ("GPU0    GPU1    GPU2", "GPU0    GPU0    GPU2", "line 1: a header has each name once"),
        ("GPU1    PIX      X      PHB ", "GPU0    X        PIX    PHB ", "line 3: GPU0 has a second row"),
        (WORKSTATION, "hello", "no header with GPU0"),
    ],
)  # fmt: skip
def test_a_damaged_matrix_is_refused_with_its_place(old, new, answer):
    assert old in WORKSTATION
    with pytest.raises(TopologyError) as caught:
        read(WORKSTATION.replace(old, new))
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_distances_that_are_of_no_tree_get_a_warning_that_names_the_two_cells():
    damaged = WORKSTATION.replace("GPU1    PIX      X      PHB", "GPU1    PIX      X      SYS").replace(
        "GPU2    PHB     PHB ", "GPU2    PHB     SYS "
    )
    with pytest.warns(UserWarning, match="topo.txt: GPU1 to GPU2 is SYS, but GPU0 to GPU2 is PHB") as told:
        read(damaged)
    assert len(told) == 1


@pytest.mark.parametrize("text", [DGX1, WORKSTATION, UNDERLINED, nvlinks(8, 18)])
def test_a_matrix_without_a_contradiction_gets_no_warning(text, recwarn):
    read(text)
    assert not recwarn.list
