"""Machines that are alike, and the tiers of switches between machines."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from gradtide.topology.kinds import name_kind, wire_kind
from gradtide.topology.model import NodeKind, Topology

__all__ = ["MachineKind", "Tier", "machine_kinds", "tiers_of", "wire_counts"]


@dataclass(frozen=True, slots=True)
class MachineKind:
    """Machines whose nodes and wires differ in nothing but the machine's name; the first stands for all."""

    machines: tuple[str, ...]
    nodes: tuple[str, ...]  # of the first

    @property
    def first(self) -> str:
        return self.machines[0]


@dataclass(frozen=True, slots=True)
class Tier:
    """Nodes outside machines whose names differ in numbers only; `level` counts links from the nearest device."""

    kind: str
    nodes: tuple[str, ...]
    level: int


def machine_kinds(topology: Topology) -> list[MachineKind]:
    """The kinds of machines, the largest first; wires out of a machine count by what kind of node they lead to."""
    machine = {node.name: node.machine for node in topology.nodes}
    nodes: dict[str, list[str]] = defaultdict(list)
    looks: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for node in topology.nodes:
        if node.machine:
            nodes[node.machine].append(node.name)
            looks[node.machine].append((node.name.removeprefix(f"{node.machine}."), node.kind))
    for link in topology.links:
        ends = machine[link.source], machine[link.target]
        wire = (link.bytes_per_s, link.latency_s, link.count)
        for home in {end for end in ends if end}:
            names = [
                name.removeprefix(f"{home}.") if end == home else f"to {name_kind(name)}"
                for name, end in zip((link.source, link.target), ends, strict=True)
            ]
            looks[home].append((*names, *wire))
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for home, look in looks.items():
        alike[tuple(sorted(look, key=repr))].append(home)
    kinds = [MachineKind(tuple(homes), tuple(nodes[homes[0]])) for homes in alike.values()]
    return sorted(kinds, key=lambda kind: -len(kind.machines))


def tiers_of(topology: Topology) -> list[Tier]:
    """The tiers between machines, from the one next to them upwards."""
    near: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        near[link.source].add(link.target)
        near[link.target].add(link.source)
    level = {node.name: 0 for node in topology.nodes if node.kind is NodeKind.DEVICE}
    open_ = list(level)
    for name in open_:  # grows
        for other in near[name]:
            if other not in level:
                level[other] = level[name] + 1
                open_.append(other)
    found: dict[str, list[str]] = defaultdict(list)
    for node in topology.nodes:
        if not node.machine and node.kind is not NodeKind.DEVICE:
            found[name_kind(node.name)].append(node.name)
    tiers = [Tier(kind, tuple(names), min(level.get(n, 0) for n in names)) for kind, names in found.items()]
    return sorted(tiers, key=lambda tier: tier.level)


def wire_counts(topology: Topology) -> dict[str, Counter[tuple[int, float]]]:
    """For each kind of wire, how many one-way links have how many wires of which rate."""
    found: dict[str, Counter[tuple[int, float]]] = defaultdict(Counter)
    for link in topology.links:
        found[wire_kind(link)][link.count, link.bytes_per_s] += 1
    return dict(found)
