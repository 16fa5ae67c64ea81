"""The switches between machines: a rail's leaf, spines above leaves, cores above spines."""

from dataclasses import dataclass

from gradtide.errors import TopologyError
from gradtide.topology.model import Link, Node, NodeKind
from gradtide.topology.rates import RDMA_S, SWITCH_S

__all__ = ["Fabric", "Port", "check_fabric", "wire_fabric"]

MOST_SWITCHES = 65_536


@dataclass(frozen=True, slots=True)
class Port:
    """A NIC that wants to be plugged in: of which host, which of its NICs, out of how many, how fast."""

    nic: str
    host: int
    number: int
    of: int
    bytes_per_s: float
    wires: int = 1


@dataclass(frozen=True, slots=True)
class Fabric:
    """Groups of `hosts_a_leaf` hosts on leaves; leaves on all spines of their pod; spines on the cores of their number.

    With rails, NIC j of each host is on leaf j of its group: as many leaves a group as a host has NICs. Without, all
    NICs are on the group's one leaf.
    """

    hosts_a_leaf: int
    rails: bool
    bytes_per_s: float = 50e9  # of a wire between switches
    uplinks: int = 0  # wires of a leaf to spines, all together; 0: there are no spines
    spines: int = 0  # of a pod
    groups_a_pod: int = 0  # 0: all in one pod
    spine_uplinks: int = 0  # wires of a spine to cores
    cores: int = 0  # that the spines of one number share
    edge_latency_s: float = RDMA_S / 2  # of the wire between a NIC and its leaf


def check_fabric(fabric: Fabric, who: str) -> None:
    """Whether its counts divide; `who` is whom an error speaks of."""
    for lower, upper, wires, count in (
        ("leaf", "spines", fabric.uplinks, fabric.spines),
        ("spine", "cores", fabric.spine_uplinks, fabric.cores),
    ):
        if bool(wires) != bool(count):
            raise TopologyError(f"{who}: a {lower} has {wires} uplinks, but there are {count} {upper}; give both")
        if count and wires % count:
            fits = [str(n) for n in range(1, wires + 1) if not wires % n]
            near = ", ".join(fits[-6:])
            raise TopologyError(
                f"{who}: {wires} uplinks of a {lower} don't divide among {count} {upper}; take {near} {upper}"
            )


def wire_fabric(fabric: Fabric, ports: list[Port]) -> tuple[list[Node], list[Link]]:
    """The switches that these ports need, and all links between them."""
    rails = max(port.of for port in ports) if fabric.rails else 1
    groups = max(port.host for port in ports) // fabric.hosts_a_leaf + 1
    leaves = groups * rails
    nodes = _switches("leaf", leaves)
    links: list[Link] = []
    for port in ports:
        rail = port.number * rails // port.of if fabric.rails else 0
        leaf = f"leaf{port.host // fabric.hosts_a_leaf * rails + rail}"
        links += _joined(port.nic, leaf, port.bytes_per_s, fabric.edge_latency_s, port.wires)
    if not fabric.spines:
        return nodes, links
    groups_a_pod = fabric.groups_a_pod or groups
    pods = -(-groups // groups_a_pod)
    nodes += _switches("spine", pods * fabric.spines)
    for lower in range(leaves):
        first = lower // rails // groups_a_pod * fabric.spines
        for spine in range(first, first + fabric.spines):
            links += _between(fabric, f"leaf{lower}", f"spine{spine}", fabric.uplinks // fabric.spines)
    if fabric.cores and pods > 1:
        nodes += _switches("core", fabric.spines * fabric.cores)
        for spine in range(pods * fabric.spines):
            first = spine % fabric.spines * fabric.cores
            for core in range(first, first + fabric.cores):
                links += _between(fabric, f"spine{spine}", f"core{core}", fabric.spine_uplinks // fabric.cores)
    return nodes, links


def _switches(kind: str, count: int) -> list[Node]:
    if count > MOST_SWITCHES:
        raise TopologyError(f"a fabric of {count:,} switches ({kind}) is more than {MOST_SWITCHES:,}; check the counts")
    return [Node(f"{kind}{i}", NodeKind.SWITCH) for i in range(count)]


def _between(fabric: Fabric, lower: str, upper: str, wires: int) -> list[Link]:
    return _joined(lower, upper, fabric.bytes_per_s, SWITCH_S, wires)


def _joined(a: str, b: str, bytes_per_s: float, latency_s: float, wires: int) -> list[Link]:
    return [Link(a, b, bytes_per_s, latency_s, wires), Link(b, a, bytes_per_s, latency_s, wires)]
