"""The nodes that pass traffic on, peeled: what hangs like a tree, and the core that has circles in it."""

from collections import defaultdict
from collections.abc import Iterable

from gradtide.topology.core import Core, link_cost
from gradtide.topology.model import Link, NodeKind, Topology

__all__ = ["PassingNodes"]


class PassingNodes:
    """Switches, NICs and hosts.

    A passing node with a single passing neighbour leads nowhere but to what hangs on it. Such nodes are peeled off,
    again and again, each with its last neighbour as parent. A way between two nodes then climbs from the one to a
    parent, crosses the core, if there is one, and comes down to the other: nothing else of a cluster of 10,000 need
    be looked at.
    """

    def __init__(self, topology: Topology) -> None:
        self.passes = {node.name for node in topology.nodes if node.kind is not NodeKind.DEVICE}
        self.out: dict[str, list[Link]] = defaultdict(list)
        self.into: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            self.out[link.source].append(link)
            self.into[link.target].append(link)
        self.between: dict[tuple[str, str], Link] = {}
        for link in topology.links:
            old = self.between.setdefault((link.source, link.target), link)
            if link is not old and link_cost(link) < link_cost(old):
                self.between[link.source, link.target] = link
        self.parent, self.in_core = self._peel(topology)
        self._beside: dict[tuple[str, bool], dict[str, int]] = {}
        self.core = Core([node.name for node in topology.nodes if node.name in self.in_core], topology.links)

    def _peel(self, topology: Topology) -> tuple[dict[str, str], set[str]]:
        near: dict[str, dict[str, None]] = {node.name: {} for node in topology.nodes if node.name in self.passes}
        for link in topology.links:
            if link.source in near and link.target in near:
                near[link.source][link.target] = near[link.target][link.source] = None
        parent: dict[str, str] = {}
        ready = [name for name, others in near.items() if len(others) == 1]
        core = {name for name, others in near.items() if others}
        for name in ready:  # grows
            if len(near[name]) != 1:
                continue  # the last two of a tree are each other's only neighbour: one of them is the top
            (above,) = near[name]
            parent[name] = above
            core.discard(name)
            near[name].clear()
            del near[above][name]
            if len(near[above]) == 1:
                ready.append(above)
            elif not near[above]:
                core.discard(above)
        return parent, core

    def beside(self, node: str, *, in_core: bool) -> dict[str, int]:
        """What a node is wired to, numbered: of the core, or what hangs on it."""
        key = (node, in_core)
        if key not in self._beside:
            near = dict.fromkeys(k.target for k in self.out[node] if (k.target in self.in_core) == in_core)
            self._beside[key] = {name: number for number, name in enumerate(near)}
        return self._beside[key]

    def above(self, starts: Iterable[str]) -> dict[str, None]:
        """These nodes and all their parents."""
        found: dict[str, None] = {}
        for name in starts:
            at: str | None = name
            while at is not None and at not in found:
                found[at] = None
                at = self.parent.get(at)
        return found
