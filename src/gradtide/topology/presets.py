"""Topologies known by name: machines that exist, and shapes that teach."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import MOST_DEVICES
from gradtide.topology.clusters.named import check_count, check_gbits, fat_tree, leaf_spine, mixed, rail, superpod
from gradtide.topology.clusters.tori import torus
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.rates import ETHERNET_S, NVLINK_S, PCIE_S, QPI_S, TEXTBOOK_NVLINK, WireRates
from gradtide.topology.wording import shown

__all__ = ["PRESETS", "Preset", "is_preset_name", "preset", "resized_name"]

RATES = WireRates()
SHAPE = 10e9  # of ring:N and star:N: round, so that a sum fits in the head

LARGEST = MOST_DEVICES
GPUS_A_HOST = 64


def both_ways(a: str, b: str, bytes_per_s: float, latency_s: float, count: int = 1) -> list[Link]:
    return [Link(a, b, bytes_per_s, latency_s, count), Link(b, a, bytes_per_s, latency_s, count)]


def devices(names: list[str], machine: str = "host0") -> list[Node]:
    return [Node(name, NodeKind.DEVICE, machine) for name in names]


def pcie_4gpu() -> Topology:
    """Four GPUs and a host CPU on one PCIe 3.0 x16 switch: 16 GB/s each way per port."""
    gpus = [f"gpu{i}" for i in range(4)]
    links = [link for name in (*gpus, "cpu") for link in both_ways(name, "switch", RATES.pcie, PCIE_S / 2)]
    nodes = [*devices(gpus), Node("cpu", NodeKind.HOST, "host0"), Node("switch", NodeKind.SWITCH, "host0")]
    return Topology("pcie-4gpu", tuple(nodes), tuple(links))


def dgx1_nvlinks() -> list[Link]:
    """A doubled ring 1-2-…-8 and a single one 1-4-6-3-5-8-2-7: six NVLinks a GPU."""
    double, single = (1, 2, 3, 4, 5, 6, 7, 8), (1, 4, 6, 3, 5, 8, 2, 7)
    links: list[Link] = []
    for ring, count in ((double, 2), (single, 1)):
        for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
            links += both_ways(f"gpu{a}", f"gpu{b}", TEXTBOOK_NVLINK, NVLINK_S, count)
    return links


def dgx1_v100() -> Topology:
    """Eight V100s, NVLink only: a doubled ring 1-2-…-8 and a single one 1-4-6-3-5-8-2-7, 18 GB/s a link."""
    return Topology("dgx1-v100", tuple(devices([f"gpu{i}" for i in range(1, 9)])), tuple(dgx1_nvlinks()))


def dgx1_v100_pcie() -> Topology:
    """The DGX-1 with its PCIe tree: two CPUs joined by QPI, two switches a CPU, two GPUs a switch."""
    nodes = devices([f"gpu{i}" for i in range(1, 9)])
    nodes += [Node(f"switch{i}", NodeKind.SWITCH, "host0") for i in range(4)]
    nodes += [Node(f"cpu{i}", NodeKind.HOST, "host0") for i in range(2)]
    links = dgx1_nvlinks()
    for i in range(8):
        links += both_ways(f"gpu{i + 1}", f"switch{i // 2}", RATES.pcie, PCIE_S / 2)
    for i in range(4):  # the uplink: both GPUs of a switch go through this one wire
        links += both_ways(f"switch{i}", f"cpu{i // 2}", RATES.pcie, PCIE_S / 2)
    links += both_ways("cpu0", "cpu1", RATES.socket / 2, QPI_S, count=2)
    return Topology("dgx1-v100-pcie", tuple(nodes), tuple(links))


def nvswitch(name: str, gpus: int, nvlinks: int) -> Topology:
    """GPUs on NVSwitch chips, drawn as one switch: the chips together never block, so one switch is exact."""
    names = [f"gpu{i}" for i in range(gpus)]
    links = [k for gpu in names for k in both_ways(gpu, "nvswitch", RATES.nvlink, NVLINK_S / 2, nvlinks)]
    return Topology(name, (*devices(names), Node("nvswitch", NodeKind.SWITCH, "host0")), tuple(links))


def dgx2() -> Topology:
    """Sixteen V100s on NVSwitch: six NVLinks each, 150 GB/s a direction."""
    return nvswitch("dgx2", 16, 6)


def dgx_a100() -> Topology:
    """Eight A100s on NVSwitch: twelve NVLinks each, 300 GB/s a direction."""
    return nvswitch("dgx-a100", 8, 12)


def dgx_h100() -> Topology:
    """Eight H100s on NVSwitch: eighteen NVLinks each, 450 GB/s a direction."""
    return nvswitch("dgx-h100", 8, 18)


def ethernet_cluster(hosts: int, gpus: int, gbits: float) -> Topology:
    """HOSTS machines with GPUS on a PCIe switch beside a CPU and a NIC; the NICs on one Ethernet switch."""
    check_count("ethernet-cluster", "HOSTS", hosts, 1, LARGEST)
    check_count("ethernet-cluster", "GPUS", gpus, 1, GPUS_A_HOST)
    check_count("ethernet-cluster", "HOSTS x GPUS", hosts * gpus, 2, LARGEST)
    port = check_gbits("ethernet-cluster", gbits)
    nodes, links = [Node("ethernet", NodeKind.SWITCH)], []
    for machine in (f"host{i}" for i in range(hosts)):
        cpu, switch, nic = f"{machine}.cpu", f"{machine}.pcie", f"{machine}.nic"
        names = [f"{machine}.gpu{i}" for i in range(gpus)]
        nodes += devices(names, machine)
        nodes += [Node(cpu, NodeKind.HOST, machine), Node(switch, NodeKind.SWITCH, machine)]
        nodes += [Node(nic, NodeKind.NIC, machine)]
        for name in (*names, cpu, nic):
            links += both_ways(name, switch, RATES.pcie, PCIE_S / 2)
        links += both_ways(nic, "ethernet", port, ETHERNET_S / 2)
    return Topology(f"ethernet-cluster:{hosts}x{gpus}@{gbits:g}", tuple(nodes), tuple(links))


def ring(count: int) -> Topology:
    """N devices in a circle, each wired to the next and the one before: 10 GB/s each way."""
    check_count("ring", "N", count, 2, LARGEST)
    names = [f"gpu{i}" for i in range(count)]
    pairs = list(zip(names, names[1:] + names[:1], strict=True))[: count if count > 2 else 1]
    links = [link for a, b in pairs for link in both_ways(a, b, SHAPE, PCIE_S)]
    return Topology(f"ring:{count}", tuple(devices(names)), tuple(links))


def star(count: int) -> Topology:
    """N devices, each wired to one hub at 10 GB/s each way. The hub is a host: it may aggregate."""
    check_count("star", "N", count, 2, LARGEST)
    names = [f"gpu{i}" for i in range(count)]
    links = [link for name in names for link in both_ways(name, "hub", SHAPE, PCIE_S / 2)]
    return Topology(f"star:{count}", (*devices(names), Node("hub", NodeKind.HOST, "host0")), tuple(links))


@dataclass(frozen=True, slots=True)
class Preset:
    """A name that a user can type, perhaps with numbers in it, and what it stands for."""

    form: str  # as in a help text: "ring:N"
    example: str  # a name that works: "ring:8"
    pattern: str  # of the whole name; its groups are the builder's arguments
    build: Callable[..., Topology]
    types: tuple[type[int] | type[float] | type[str], ...] = ()

    @property
    def summary(self) -> str:
        return (self.build.__doc__ or "").strip()


INT, NUMBER = r"(-?\d{1,9})", r"(-?\d{1,9}(?:\.\d{1,9})?)"

PRESETS = (
    Preset("pcie-4gpu", "pcie-4gpu", "pcie-4gpu", pcie_4gpu),
    Preset("dgx1-v100", "dgx1-v100", "dgx1-v100", dgx1_v100),
    Preset("dgx1-v100-pcie", "dgx1-v100-pcie", "dgx1-v100-pcie", dgx1_v100_pcie),
    Preset("dgx2", "dgx2", "dgx2", dgx2),
    Preset("dgx-a100", "dgx-a100", "dgx-a100", dgx_a100),
    Preset("dgx-h100", "dgx-h100", "dgx-h100", dgx_h100),
    Preset(
        "ethernet-cluster:HOSTSxGPUS@GBITS",
        "ethernet-cluster:4x8@100",
        f"ethernet-cluster:{INT}x{INT}@{NUMBER}",
        ethernet_cluster,
        (int, int, float),
    ),
    Preset("superpod:HOSTS", "superpod:4", f"superpod:{INT}", superpod, (int,)),
    Preset("mixed:OLD+NEW", "mixed:2+2", rf"mixed:{INT}\+{INT}", mixed, (int, int)),
    Preset(
        "rail:HOSTSxGPUSxNICS@GBITS",
        "rail:4x8x4@400",
        f"rail:{INT}x{INT}x{INT}@{NUMBER}",
        rail,
        (int, int, int, float),
    ),
    Preset(
        "leaf-spine:HOSTSxGPUSxNICS@GBITS/OVER",
        "leaf-spine:32x8x4@200/2",
        f"leaf-spine:{INT}x{INT}x{INT}@{NUMBER}/{INT}",
        leaf_spine,
        (int, int, int, float, int),
    ),
    Preset("fat-tree:K@GBITS", "fat-tree:4@100", f"fat-tree:{INT}@{NUMBER}", fat_tree, (int, float)),
    Preset("torus:XxYxZ", "torus:4x4", r"torus:(\d{1,5}(?:x\d{1,5}){0,9})", torus, (str,)),
    Preset("ring:N", "ring:8", f"ring:{INT}", ring, (int,)),
    Preset("star:N", "star:8", f"star:{INT}", star, (int,)),
)


def is_preset_name(text: str) -> bool:
    """Whether this is meant as a preset, well formed or not: `ring:x` is, `./ring.toml` is not."""
    return any(text.split(":")[0] == known.form.split(":")[0] for known in PRESETS)


def preset(name: str) -> Topology:
    """The topology of this name; a name that is nearly right is answered with the right one."""
    for known in PRESETS:
        match = re.fullmatch(known.pattern, name, re.ASCII)
        if match:
            return known.build(*(kind(text) for kind, text in zip(known.types, match.groups(), strict=True)))
    raise TopologyError(unknown_text(name))


def resized_name(name: str, hosts: int) -> str:
    """The same preset with so many hosts: superpod:4 becomes superpod:128."""
    preset(name)  # what is wrong with the name itself is said first
    known = next(known for known in PRESETS if re.fullmatch(known.pattern, name, re.ASCII))
    _, _, numbers = known.form.partition(":")
    if not numbers.startswith("HOSTS"):
        able = ", ".join(other.form for other in PRESETS if ":HOSTS" in other.form)
        raise TopologyError(f"{name} has no number of hosts; such have {able}, and TOML files with [[hosts]]")
    return re.sub(r":\d+", f":{hosts}", name, count=1)


def unknown_text(name: str) -> str:
    by_stem = {known.form.split(":")[0]: known for known in PRESETS}
    known = by_stem.get(name.split(":")[0])
    if known:
        return f"{shown(name)} is not of the form {known.form}; write for example {known.example}"
    near = difflib.get_close_matches(name.split(":")[0].lower(), by_stem, n=1, cutoff=0.5)
    hint = f"did you mean {by_stem[near[0]].form}?" if near else f"known are {', '.join(p.form for p in PRESETS)}"
    return f"no topology is called {shown(name)}; {hint}"
