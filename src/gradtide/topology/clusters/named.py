"""Clusters that have a name, and how their switches are counted."""

from dataclasses import replace

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import MOST_DEVICES, Cluster, HostGroup, build_cluster
from gradtide.topology.clusters.fabrics import Fabric
from gradtide.topology.clusters.host_kinds import HOST_KINDS, HostKind
from gradtide.topology.model import Topology

__all__ = ["check_count", "check_gbits", "fat_tree", "leaf_spine", "mixed", "rail", "superpod"]

UNIT = 32  # hosts of a SuperPOD's scalable unit: half the 64 ports of a leaf
SWITCH_PORTS = 64
MOST_HOSTS = 2_048
MOST_ARITY = 40  # of a fat tree: 16,000 devices
GBITS = 100_000.0
RACK = 16  # hosts of a leaf of leaf-spine
SPINES = 4


def check_count(kind: str, what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise TopologyError(f"{kind}: {what} must be from {least} to {most}, not {value}")


def check_gbits(kind: str, gbits: float) -> float:
    """Gbit/s in bytes/s."""
    if not 0 < gbits <= GBITS:
        raise TopologyError(f"{kind}: GBITS must be above 0 and at most {GBITS:g}, not {gbits:g}")
    return gbits * 1e9 / 8


def superpod(hosts: int) -> Topology:
    """HOSTS DGX H100 on rails: a NIC of 400 Gbit/s for each GPU, units of 32 hosts on 8 leaves, full bisection."""
    check_count("superpod", "HOSTS", hosts, 1, MOST_HOSTS)
    return build_cluster(Cluster(f"superpod:{hosts}", (HostGroup(HOST_KINDS["dgx-h100"], hosts),), _pod(hosts)))


def mixed(older: int, newer: int) -> Topology:
    """OLD DGX A100 (200 Gbit/s a NIC) and NEW DGX H100 (400 Gbit/s) on the rails of one SuperPOD."""
    check_count("mixed", "OLD", older, 1, MOST_HOSTS - 1)
    check_count("mixed", "NEW", newer, 1, MOST_HOSTS - older)
    groups = (HostGroup(HOST_KINDS["dgx-a100"], older), HostGroup(HOST_KINDS["dgx-h100"], newer))
    return build_cluster(Cluster(f"mixed:{older}+{newer}", groups, _pod(older + newer)))


def _pod(hosts: int) -> Fabric:
    """Leaves of 32 ports down and 32 up. Up to 8 units two tiers do; above, each has 8 spines, joined by cores.

    A switch has 64 ports, so spines (and cores) are the fewest that have ports for all and share the wires evenly.
    """
    units = -(-hosts // UNIT)
    if units <= 8:
        return Fabric(UNIT, rails=True, uplinks=UNIT, spines=max(4, _power_of_two(4 * units)))
    cores = _power_of_two(-(-units * UNIT // SWITCH_PORTS))
    return Fabric(UNIT, True, uplinks=UNIT, spines=8, groups_a_pod=1, spine_uplinks=UNIT, cores=cores)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def rail(hosts: int, gpus: int, nics: int, gbits: float) -> Topology:
    """HOSTS of GPUS H100s on NVSwitch and NICS of GBITS Gbit/s; NIC j of all on one switch, no spine (rail-only)."""
    check_count("rail", "HOSTS", hosts, 1, MOST_DEVICES)
    kind = HostKind("host", gpus, nics, check_gbits("rail", gbits))
    name = f"rail:{hosts}x{gpus}x{nics}@{gbits:g}"
    return build_cluster(Cluster(name, (HostGroup(kind, hosts),), Fabric(hosts, rails=True)))


def leaf_spine(hosts: int, gpus: int, nics: int, gbits: float, oversubscription: int) -> Topology:
    """HOSTS as in rail, 16 to a leaf with all their NICs; 4 spines; a leaf sends them 1/OVER of what its hosts can."""
    check_count("leaf-spine", "HOSTS", hosts, 1, MOST_DEVICES)
    check_count("leaf-spine", "OVER", oversubscription, 1, 64)
    kind = HostKind("host", gpus, nics, check_gbits("leaf-spine", gbits))
    ports = min(RACK, hosts) * nics
    wires = max(1, ports // SPINES)  # as many as a leaf without oversubscription has to each spine
    rate = kind.nic_bytes_per_s * ports / (wires * SPINES) / oversubscription
    fabric = Fabric(min(RACK, hosts), rails=False, bytes_per_s=rate, uplinks=wires * SPINES, spines=SPINES)
    name = f"leaf-spine:{hosts}x{gpus}x{nics}@{gbits:g}/{oversubscription}"
    return build_cluster(Cluster(name, (HostGroup(kind, hosts),), fabric))


def fat_tree(arity: int, gbits: float) -> Topology:
    """K³/4 hosts of one GPU on switches of K ports of GBITS Gbit/s: K pods of K/2 leaves and K/2 spines, K²/4 cores."""
    check_count("fat-tree", "K", arity, 2, MOST_ARITY)
    if arity % 2:
        raise TopologyError(f"fat-tree: K must be even, since half of a switch's ports lead up; not {arity}")
    half, rate = arity // 2, check_gbits("fat-tree", gbits)
    kind = replace(HostKind("host", 1, 1, rate), pcie_bytes_per_s=max(64e9, rate))
    fabric = Fabric(
        half,
        rails=False,
        bytes_per_s=rate,
        uplinks=half,
        spines=half,
        groups_a_pod=half,
        spine_uplinks=half,
        cores=half,
    )
    return build_cluster(Cluster(f"fat-tree:{arity}@{gbits:g}", (HostGroup(kind, arity * half * half),), fabric))
