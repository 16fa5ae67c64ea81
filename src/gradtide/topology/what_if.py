"""The same cluster with something missing, slower or faster."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase

from gradtide.errors import TopologyError
from gradtide.topology.model import Link, Topology
from gradtide.topology.validate import faults
from gradtide.topology.wording import nearest, shown

__all__ = ["altered", "degraded", "parse_degrade", "without"]

LEAST, MOST = 1e-6, 1e6


def without(topology: Topology, name: str) -> Topology:
    """Without a node (host3.nic0), a machine (host3) or a link (host3.nic0->leaf0); `*` stands for anything.

    What is left must still connect all devices that are left.
    """
    gone_nodes, gone_links = _named(topology, name)
    nodes = tuple(node for node in topology.nodes if node.name not in gone_nodes)
    names = {node.name for node in nodes}
    kept = (link for link in topology.links if link not in gone_links)
    links = tuple(link for link in kept if link.source in names and link.target in names)
    left = replace(topology, name=f"{topology.name} without {name}", nodes=nodes, links=links)
    for fault in faults(left):
        raise TopologyError(f"without {shown(name)}, {fault.text.split(';')[0]}")
    return left


def degraded(topology: Topology, name: str, factor: float) -> Topology:
    """With all links of a node, of a machine, or one link, at `factor` times their bandwidth: 0.1, or 1.1."""
    if not LEAST <= factor <= MOST:
        raise TopologyError(f"{shown(name)} can be made {LEAST:g} to {MOST:g} times as fast, not {factor:g}")
    nodes, links = _named(topology, name)

    def scaled(link: Link) -> Link:
        touched = link in links or link.source in nodes or link.target in nodes
        return replace(link, bytes_per_s=link.bytes_per_s * factor) if touched else link

    return replace(topology, name=f"{topology.name}, {name} × {factor:g}", links=tuple(map(scaled, topology.links)))


def altered(topology: Topology, missing: list[str], degrade: list[str]) -> Topology:
    """What --without and --degrade make of a topology, in that order."""
    for name in missing:
        topology = without(topology, name)
    for text in degrade:
        topology = degraded(topology, *parse_degrade(text))
    return topology


def parse_degrade(text: str) -> tuple[str, float]:
    """Both parts of host3.nic0=0.1."""
    name, equals, factor = text.rpartition("=")
    try:
        if not equals:
            raise ValueError
        return name, float(factor)
    except ValueError:
        raise TopologyError(f"{shown(text)} is not NAME=FACTOR; write for example host3.nic0=0.1") from None


def _named(topology: Topology, name: str) -> tuple[set[str], set[Link]]:
    """The nodes and the links that a name stands for."""
    matches = _matcher(name)
    nodes = {node.name for node in topology.nodes if matches(node.name) or (node.machine and matches(node.machine))}
    if "->" in name:
        links = {link for link in topology.links if matches(f"{link.source}->{link.target}")}
    else:
        links = {link for link in topology.links if link.wire and matches(link.wire)}
    if not nodes and not links:
        raise TopologyError(f"{topology.name} has no {shown(name)}{_suggestion(topology, name)}")
    return nodes, links


def _matcher(name: str) -> Callable[[str], bool]:
    if "*" in name:
        return lambda text: fnmatchcase(text, name.replace("[", "[[]").replace("?", "[?]"))
    return lambda text: text == name


def _suggestion(topology: Topology, name: str) -> str:
    known = {node.name for node in topology.nodes} | {node.machine for node in topology.nodes if node.machine}
    if "->" in name:
        known = {f"{link.source}->{link.target}" for link in topology.links}
    ends = sorted(text for text in known if text.endswith(f".{name}"))
    if name and ends:
        return f"; did you mean {ends[0]!r}, or '*.{name}' for all?"
    head = name.split(".")[0]
    near = [text for text in known if text.split(".")[0] == head] or sorted(known, key=lambda text: (len(text), text))
    return nearest(name, near[:1_000])  # to compare with 20,000 names takes seconds
