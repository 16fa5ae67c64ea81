"""Hosts and a fabric as a topology: host0.gpu0, host0.nic0, leaf0, spine0, core0."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradtide.errors import TopologyError
from gradtide.topology.clusters.fabrics import Fabric, Port, check_fabric, wire_fabric
from gradtide.topology.clusters.host_kinds import HostKind, HostTemplate, check_host_kind, wire_host
from gradtide.topology.model import Link, Node, Topology

__all__ = ["MOST_DEVICES", "Cluster", "HostGroup", "build_cluster"]

MOST_DEVICES = 16_384  # a topology of that many takes about a second; nobody has wired more alike


@dataclass(frozen=True, slots=True)
class HostGroup:
    """So many hosts of one kind, one after the other."""

    kind: HostKind | HostTemplate
    count: int
    names: tuple[str, ...] = ()  # of the hosts; host0, host1, … if left out


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is bought: hosts of one kind or several, and the fabric between them."""

    name: str
    groups: tuple[HostGroup, ...]
    fabric: Fabric


def build_cluster(cluster: Cluster) -> Topology:
    """The topology with every host, wire and switch. Hosts are numbered through all groups, in their order."""
    _check(cluster)
    nodes: list[Node] = []
    links: list[Link] = []
    ports: list[Port] = []
    for host, (kind, machine) in enumerate(_hosts(cluster)):
        some_nodes, some_links = wire_host(kind, machine)
        nodes += some_nodes
        links += some_links
        ports += [
            Port(f"{machine}.{nic}", host, i, kind.nic_nodes, kind.nic_bytes_per_s, kind.nic_wires)
            for i, nic in enumerate(kind.nic_names)
        ]
    more_nodes, more_links = wire_fabric(cluster.fabric, ports)
    return Topology(cluster.name, (*nodes, *more_nodes), (*links, *more_links))


def _hosts(cluster: Cluster) -> Iterator[tuple[HostKind | HostTemplate, str]]:
    """Every host's kind and name."""
    numbered = 0
    for group in cluster.groups:
        for at in range(group.count):
            yield group.kind, group.names[at] if group.names else f"host{numbered}"
            numbered += 1


def _check(cluster: Cluster) -> None:
    who = cluster.name
    hosts = sum(group.count for group in cluster.groups)
    devices = sum(group.count * group.kind.gpus for group in cluster.groups)
    if not 2 <= devices <= MOST_DEVICES:
        raise TopologyError(f"{who}: {devices:,} devices in {hosts:,} hosts; a cluster has from 2 to {MOST_DEVICES:,}")
    for group in cluster.groups:
        check_host_kind(group.kind, who)
    if cluster.fabric.rails:
        _check_rails([group.kind for group in cluster.groups], who)
    elif hosts > cluster.fabric.hosts_a_leaf and not cluster.fabric.spines:
        leaves = -(-hosts // cluster.fabric.hosts_a_leaf)
        raise TopologyError(f"{who}: {leaves} leaves and no spines don't connect; add spines, or put more on a leaf")
    check_fabric(cluster.fabric, who)


def _check_rails(kinds: Sequence[HostKind | HostTemplate], who: str) -> None:
    most = max(kind.nic_nodes for kind in kinds)
    for kind in kinds:
        if most % kind.nic_nodes:
            raise TopologyError(
                f"{who}: {kind.nic_nodes} NICs of {kind.name} don't divide {most} rails; take a number that does"
            )
