"""The PCIe tree that distances between its leaves imply: switches, host bridges, CPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradtide.topology.model import Link, Node, NodeKind
from gradtide.topology.rates import PCIE_S, QPI_S, WireRates

__all__ = ["DISTANCES", "PcieLeaf", "pcie_tree"]

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far
Codes = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class PcieLeaf:
    """A leaf of the tree: a GPU or a NIC."""

    name: str  # in the matrix
    label: str  # in the topology
    cpus: str  # its CPU affinity, or nothing


Group = tuple[PcieLeaf, ...]


def pcie_tree(members: Sequence[PcieLeaf], codes: Codes, rates: WireRates) -> tuple[list[Node], list[Link]]:
    """Nodes and links above the leaves. A leaf with neither a PCIe distance nor a CPU affinity is left out.

    NV# hides the PCIe distance of a pair. Two such leaves go to one CPU if they have the same affinity (or none is
    given) and nothing says SYS; as to switches, only what the matrix says is believed.
    """
    placed = [m for m in members if m.cpus or any(codes[m.name, o.name] in DISTANCES for o in members if o != m)]
    builder = _Builder(codes, rates)
    sockets = _sockets(placed, codes)
    cpus = [builder.add(f"cpu{i}", NodeKind.HOST) for i in range(len(sockets))]
    for cpu, group in zip(cpus, sockets, strict=True):
        builder.fill(cpu, group)
    for i, a in enumerate(cpus):
        for b in cpus[i + 1 :]:
            builder.join(a, b, rates.socket, QPI_S)
    return builder.nodes, builder.links


class _Builder:
    """Grows the tree downwards: host bridges, then switches of switches, then switches, then leaves."""

    def __init__(self, codes: Codes, rates: WireRates) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self._codes, self._rates, self._switches, self._bridges = codes, rates, 0, 0

    def add(self, name: str, kind: NodeKind) -> str:
        self.nodes.append(Node(name, kind, "host0"))
        return name

    def join(self, a: str, b: str, bytes_per_s: float, latency_s: float) -> None:
        self.links += [Link(a, b, bytes_per_s, latency_s), Link(b, a, bytes_per_s, latency_s)]

    def fill(self, cpu: str, group: Group) -> None:
        bridges = self._split(group, "PHB")
        for part in bridges:
            # With one host bridge the CPU itself stands for it.
            top = cpu if len(bridges) == 1 or len(part) == 1 else self._under(cpu, "bridge")
            for several in self._split(part, "PXB"):
                self._hang(top, several)

    def _hang(self, parent: str, group: Group) -> None:
        """One switch for leaves that are PIX apart; where some are PXB apart, one more above those switches."""
        parts = self._split(group, "PIX")
        upper = self._under(parent, "switch") if len(parts) > 1 else parent
        for part in parts:
            switch = self._under(upper, "switch") if len(part) > 1 else upper
            for member in part:
                self.join(member.label, switch, self._rates.pcie, PCIE_S / 2)

    def _under(self, parent: str, what: str) -> str:
        number = self._bridges if what == "bridge" else self._switches
        self._bridges += what == "bridge"
        self._switches += what == "switch"
        name = self.add(f"{what}{number}", NodeKind.SWITCH)
        self.join(name, parent, self._rates.pcie, PCIE_S / 2)
        return name

    def _split(self, group: Group, distance: str) -> list[Group]:
        near = DISTANCES[: DISTANCES.index(distance) + 1]
        return _merged(group, lambda a, b: self._codes[a.name, b.name] in near)


def _sockets(members: Sequence[PcieLeaf], codes: Codes) -> list[Group]:
    """One group a CPU: what is NODE or nearer, then the pairs whose distance NV# hides."""
    near = DISTANCES[: DISTANCES.index("NODE") + 1]
    groups = _merged(tuple(members), lambda a, b: codes[a.name, b.name] in near)

    def may_join(left: Group, right: Group) -> bool:
        same = {m.cpus for m in (*left, *right) if m.cpus}
        return len(same) <= 1 and not any(codes[a.name, b.name] == "SYS" for a in left for b in right)

    joined: list[Group] = []
    for group in groups:
        home = next((i for i, other in enumerate(joined) if may_join(other, group)), None)
        if home is None:
            joined.append(group)
        else:
            joined[home] = (*joined[home], *group)
    return joined


def _merged(members: Group, near: Callable[[PcieLeaf, PcieLeaf], bool]) -> list[Group]:
    """The classes of "a chain of near pairs leads from one to the other", in the order of their first members."""
    groups: list[list[PcieLeaf]] = []
    for member in members:
        touching = [g for g in groups if any(near(member, other) for other in g)]
        home = [m for g in touching for m in g] + [member]
        first = next((i for i, g in enumerate(groups) if g in touching), len(groups))
        groups = [*(g for g in groups[:first]), home, *(g for g in groups[first:] if g not in touching)]
    return [tuple(group) for group in groups]
