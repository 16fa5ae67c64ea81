"""Topologies known by name."""

from gradtide.topology.model import Link, Node, NodeKind, Topology

__all__ = ["preset"]

# Latencies are of one hop as collectives see it: a kernel launch and a PCIe or NVLink round.
PCIE_S = 3e-6
NVLINK_S = 2e-6


def both_ways(a: str, b: str, bytes_per_s: float, latency_s: float, count: int = 1) -> list[Link]:
    return [Link(a, b, bytes_per_s, latency_s, count), Link(b, a, bytes_per_s, latency_s, count)]


def pcie_4gpu() -> Topology:
    """Four GPUs and a host CPU on one PCIe 3.0 x16 switch: 16 GB/s each way per port."""
    gpus = [f"gpu{i}" for i in range(4)]
    links = [link for name in (*gpus, "cpu") for link in both_ways(name, "switch", 16e9, PCIE_S / 2)]
    nodes = [Node(name, NodeKind.DEVICE, "host0") for name in gpus]
    nodes += [Node("cpu", NodeKind.HOST, "host0"), Node("switch", NodeKind.SWITCH, "host0")]
    return Topology("pcie-4gpu", tuple(nodes), tuple(links))


def dgx1_v100() -> Topology:
    """Eight V100s with six NVLinks each: a doubled ring 1-2-…-8 and a single one 1-4-6-3-5-8-2-7."""
    names = [f"gpu{i}" for i in range(1, 9)]
    double, single = (1, 2, 3, 4, 5, 6, 7, 8), (1, 4, 6, 3, 5, 8, 2, 7)
    links: list[Link] = []
    for ring, count in ((double, 2), (single, 1)):
        for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
            links += both_ways(f"gpu{a}", f"gpu{b}", 18e9, NVLINK_S, count)
    return Topology("dgx1-v100", tuple(Node(n, NodeKind.DEVICE, "host0") for n in names), tuple(links))


def preset(name: str) -> Topology:
    return {"pcie-4gpu": pcie_4gpu, "dgx1-v100": dgx1_v100}[name]()
