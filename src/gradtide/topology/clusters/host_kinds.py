"""One machine of a cluster: its GPUs, its NICs and what joins them."""

from dataclasses import dataclass, replace

from gradtide.errors import TopologyError
from gradtide.topology.model import Link, Node, NodeKind
from gradtide.topology.rates import NVLINK_S, PCIE_S

__all__ = ["HOST_KINDS", "HostKind", "HostTemplate", "check_host_kind", "wire_host"]

GPUS_A_HOST = 64


@dataclass(frozen=True, slots=True)
class HostKind:
    """GPUs on one switch inside the machine; every GPU has a NIC of its own, or shares one with its neighbours.

    A GPU's way out is its own NIC, so traffic stays on that NIC's rail. Where NICs are a multiple of the GPUs, those
    of a GPU are bonded: one node with several wires.
    """

    name: str
    gpus: int
    nics: int
    nic_bytes_per_s: float
    inside: str = "nvswitch"  # the name of the switch that joins its GPUs; "pcie": the NIC takes from the same port
    inside_bytes_per_s: float = 25e9  # of one wire from a GPU to that switch
    inside_wires: int = 18
    inside_latency_s: float = NVLINK_S / 2
    pcie_bytes_per_s: float = 64e9  # from a GPU to its NIC

    @property
    def nic_nodes(self) -> int:
        return min(self.gpus, self.nics)

    @property
    def nic_wires(self) -> int:
        return max(1, self.nics // self.gpus)

    @property
    def nic_names(self) -> tuple[str, ...]:
        return tuple(f"nic{i}" for i in range(self.nic_nodes))


@dataclass(frozen=True, slots=True)
class HostTemplate:
    """One machine as somebody described it, node by node; names have no machine in front."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    nic_bytes_per_s: float
    nic_wires: int = 1

    @property
    def gpus(self) -> int:
        return sum(node.kind is NodeKind.DEVICE for node in self.nodes)

    @property
    def nic_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind is NodeKind.NIC)

    @property
    def nic_nodes(self) -> int:
        return len(self.nic_names)


HOST_KINDS = {
    kind.name: kind
    for kind in (
        HostKind("dgx-h100", 8, 8, 50e9),
        HostKind("dgx-a100", 8, 8, 25e9, inside_wires=12, pcie_bytes_per_s=32e9),
        HostKind("dgx2", 16, 8, 12.5e9, inside_wires=6, pcie_bytes_per_s=16e9),
        HostKind(
            "pcie-box", 4, 1, 12.5e9, inside="pcie", inside_bytes_per_s=16e9, inside_wires=1,
            inside_latency_s=PCIE_S / 2, pcie_bytes_per_s=16e9,
        ),
    )
}  # fmt: skip


def check_host_kind(kind: HostKind | HostTemplate, who: str) -> None:
    """Whether its numbers make a machine; `who` is whom an error speaks of."""
    if isinstance(kind, HostTemplate):
        if not kind.nic_nodes:
            raise TopologyError(f"{who}: {kind.name} has no NIC, so nothing joins such hosts; describe one")
        return
    if not 1 <= kind.gpus <= GPUS_A_HOST:
        raise TopologyError(f"{who}: GPUS must be from 1 to {GPUS_A_HOST}, not {kind.gpus}")
    if not 1 <= kind.nics <= GPUS_A_HOST:
        raise TopologyError(f"{who}: NICS must be from 1 to {GPUS_A_HOST}, not {kind.nics}")
    if max(kind.gpus, kind.nics) % min(kind.gpus, kind.nics):
        fits = ", ".join(str(n) for n in range(1, 2 * kind.gpus + 1) if not max(n, kind.gpus) % min(n, kind.gpus))
        raise TopologyError(f"{who}: {kind.gpus} GPUS can't share {kind.nics} NICS evenly; take {fits} NICS")


def wire_host(kind: HostKind | HostTemplate, machine: str) -> tuple[list[Node], list[Link]]:
    """The nodes of one machine, and the links inside it."""
    if isinstance(kind, HostTemplate):
        return _copied(kind, machine)
    gpus = [f"{machine}.gpu{i}" for i in range(kind.gpus)]
    nics = [f"{machine}.nic{i}" for i in range(kind.nic_nodes)]
    nodes = [Node(name, NodeKind.DEVICE, machine) for name in gpus]
    nodes += [Node(name, NodeKind.NIC, machine) for name in nics]
    links: list[Link] = []
    if kind.gpus > 1:
        switch = f"{machine}.{kind.inside}"
        nodes.append(Node(switch, NodeKind.SWITCH, machine))
        for name in gpus:
            links += _port(kind, name, switch, kind.inside_bytes_per_s, kind.inside_latency_s, kind.inside_wires)
    for i, name in enumerate(gpus):
        nic = nics[i * kind.nic_nodes // kind.gpus]
        links += _port(kind, name, nic, kind.pcie_bytes_per_s, PCIE_S / 2, kind.nic_wires)
    return nodes, links


def _copied(template: HostTemplate, machine: str) -> tuple[list[Node], list[Link]]:
    nodes = [replace(node, name=f"{machine}.{node.name}", machine=machine) for node in template.nodes]
    ends = [(f"{machine}.{link.source}", f"{machine}.{link.target}", link) for link in template.links]
    links = [
        replace(link, source=source, target=target, wire=f"{machine}.{link.wire}" if link.wire else "")
        for source, target, link in ends
    ]
    return nodes, links


def _port(kind: HostKind, gpu: str, other: str, bytes_per_s: float, latency_s: float, wires: int) -> list[Link]:
    """Both ways between a GPU and what it is plugged into. On PCIe it has one port for all it sends."""
    shared = kind.inside == "pcie" and kind.gpus > 1
    away, back = (f"{gpu} out", f"{gpu} in") if shared else ("", "")
    return [
        Link(gpu, other, bytes_per_s, latency_s, wires, away),
        Link(other, gpu, bytes_per_s, latency_s, wires, back),
    ]
