"""What makes a topology wrong, each fault with the place it is at."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gradtide.errors import TopologyError
from gradtide.topology.model import Link, NodeKind, Topology
from gradtide.topology.wording import nearest, shown

__all__ = ["TopologyFault", "check", "faults"]


@dataclass(frozen=True, slots=True)
class TopologyFault:
    """One thing that is wrong: which node or link of the topology (by position), which field, and why."""

    table: Literal["node", "link", "topology"]
    index: int
    field: str
    text: str


def check(topology: Topology) -> Topology:
    """The topology itself; raises for the first fault."""
    for fault in faults(topology):
        raise TopologyError(f"topology {shown(topology.name)}: {fault.text}")
    return topology


def faults(topology: Topology) -> Iterator[TopologyFault]:
    """Every fault, in the order of the description; reachability only where all else is right."""
    local = [*_node_faults(topology), *_link_faults(topology)]
    yield from local
    if not local:
        yield from _unreachable(topology)


def _node_faults(topology: Topology) -> Iterator[TopologyFault]:
    seen: set[str] = set()
    for index, node in enumerate(topology.nodes):
        if not node.name or not node.name.isprintable():
            yield TopologyFault(
                "node", index, "name", f"node {index + 1} needs a name that can be printed, not {shown(node.name)}"
            )
        elif node.name in seen:
            yield TopologyFault(
                "node", index, "name", f"node {shown(node.name)} is there twice; give each its own name"
            )
        seen.add(node.name)
    if not any(node.kind is NodeKind.DEVICE for node in topology.nodes):
        yield TopologyFault("topology", 0, "node", "no node is a device; at least one must compute (kind = 'device')")


def _link_faults(topology: Topology) -> Iterator[TopologyFault]:
    names = {node.name for node in topology.nodes}
    wires: dict[str, float] = {}
    for index, link in enumerate(topology.links):
        yield from (TopologyFault("link", index, field, text) for field, text in _one_link(link, names))
        if link.wire and wires.setdefault(link.wire, link.bytes_per_s * link.count) != link.bytes_per_s * link.count:
            text = f"the links that share wire {shown(link.wire)} must have one bandwidth: a wire has only one"
            yield TopologyFault("link", index, "wire", text)


def _one_link(link: Link, names: set[str]) -> Iterator[tuple[str, str]]:
    for field, name in (("from", link.source), ("to", link.target)):
        if name not in names:
            yield field, f"a link names the node {shown(name)}, which is not described{nearest(name, names)}"
    if link.source == link.target:
        yield "to", f"a link leads from {shown(link.source)} to itself; remove it"
    if not (math.isfinite(link.bytes_per_s) and link.bytes_per_s > 0):
        yield "bandwidth", f"bandwidth must be above zero, not {link.bytes_per_s:g} bytes/s"
    if not (math.isfinite(link.latency_s) and link.latency_s >= 0):
        yield "latency", f"latency must be zero or more, not {link.latency_s:g} s"
    if link.count < 1:
        yield "count", f"count must be at least 1, not {link.count}"


def _unreachable(topology: Topology) -> Iterator[TopologyFault]:
    """Devices that the first device can't reach, or that can't reach it, by any chain of links."""
    devices = [(i, node.name) for i, node in enumerate(topology.nodes) if node.kind is NodeKind.DEVICE]
    first = devices[0][1]
    onward = _reached(first, [(link.source, link.target) for link in topology.links])
    back = _reached(first, [(link.target, link.source) for link in topology.links])
    for index, name in devices:
        if name not in onward:
            text = f"device {shown(name)} can't be reached from {shown(first)}; add a link that leads to it"
            yield TopologyFault("node", index, "name", text)
        elif name not in back:
            text = f"device {shown(name)} can't reach {shown(first)}; add a link that leads away from it"
            yield TopologyFault("node", index, "name", text)


def _reached(start: str, edges: list[tuple[str, str]]) -> set[str]:
    out: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        out[source].append(target)
    reached, open_ = {start}, [start]
    while open_:
        new = [name for name in out[open_.pop()] if name not in reached]
        reached.update(new)
        open_ += new
    return reached
