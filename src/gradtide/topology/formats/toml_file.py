"""A topology as a TOML file, read and written; errors name the file, the line and the field."""

import re
import tomllib
from dataclasses import replace
from typing import Any

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import Cluster, build_cluster
from gradtide.topology.formats.toml_cluster import CLUSTER_FIELDS, ReadBeside, read_cluster, read_overrides
from gradtide.topology.formats.toml_fields import TomlFields, TomlPlace
from gradtide.topology.formats.toml_lines import TomlLines
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.units import format_bytes_per_s, format_seconds, parse_bytes_per_s, parse_seconds
from gradtide.topology.validate import faults
from gradtide.topology.wording import nearest, shown

__all__ = ["format_toml", "parse_toml"]

TOP_FIELDS = ("name", "node", "link", *CLUSTER_FIELDS)
NODE_FIELDS = ("name", "kind", "machine")
LINK_FIELDS = ("between", "from", "to", "bandwidth", "latency", "count", "wire")
LONGEST_LINE = 2_000
MOST_WIRES = 1_000_000  # side by side in one link; beyond that it is a typo


def _nothing_beside(file: str) -> str:
    raise TopologyError(f"{shown(file)} can't be read from here; read the topology from a file")


def parse_toml(
    text: str, origin: str, default_name: str, beside: ReadBeside = _nothing_beside, hosts: int | None = None
) -> Topology:
    """The topology that this text describes, checked; `origin` is what errors call the file.

    `beside` reads the files that it names; `hosts` is a number of hosts to have instead of the one that it says.
    """
    return _Reader(origin, TomlLines(text), beside, hosts).read(_load(text, origin), default_name)


def _load(text: str, origin: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_LINE:  # tomllib takes time quadratic in the length of a dotted key
            raise TopologyError(f"{origin}, line {number}: longer than {LONGEST_LINE:,} characters; expected TOML")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TopologyError(f"{origin}: brackets are nested too deeply for a description of a topology") from None
    except ValueError as error:  # a TOMLDecodeError, or a number of too many digits
        raise TopologyError(f"{origin}{_syntax_error(str(error), text)}; expected TOML") from None


def _syntax_error(message: str, text: str) -> str:
    """tomllib's message with its place in front."""
    place = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if not place:
        return f": {' '.join(message.split())[:200]}"
    where = f", line {place[2]}, column {place[3]}" if place[2] else f", line {text.rstrip().count(chr(10)) + 1}"
    return f"{where}: {' '.join(place[1].split())[:200]}"


class _Reader(TomlFields):
    """Turns tables into nodes and links, and faults into errors with their place."""

    def __init__(self, origin: str, lines: TomlLines, beside: ReadBeside, hosts: int | None) -> None:
        super().__init__(origin, lines)
        self._beside, self._wanted = beside, hosts

    def read(self, raw: dict[str, Any], default_name: str) -> Topology:
        top = TomlPlace("topology", 0, raw)
        self.known_fields(top, TOP_FIELDS)
        name = self.text(top, "name", default_name)
        counted = self.counted(raw, name)
        nodes = tuple(self.node(place) for place in self.tables(raw, "node"))
        pairs = [(place, link) for place in self.tables(raw, "link") for link in self.links(place)]
        topology = Topology(name, counted.nodes + nodes, counted.links + tuple(link for _, link in pairs))
        for fault in faults(topology):
            if fault.table == "link":
                place = pairs[fault.index - len(counted.links)][0]
                ends = fault.field in ("from", "to") and "between" in place.values
                self.fail(place, "between" if ends else fault.field, fault.text)
            if fault.table == "node" and fault.index < len(counted.nodes):
                self.fail(TomlPlace("fabric", 0, {}), "fabric", fault.text)
            self.fail(TomlPlace(fault.table, fault.index - len(counted.nodes), {}), fault.field, fault.text)
        return read_overrides(self, raw, topology)

    def counted(self, raw: dict[str, Any], name: str) -> Topology:
        """What is described by counts; nothing where all is described node by node."""
        if not set(CLUSTER_FIELDS) & set(raw):
            if self._wanted is not None:
                raise TopologyError(f"{self.origin}: has no [[hosts]] with a count, so there is no number to change")
            return Topology(name, (), ())
        cluster = read_cluster(self, raw, name, self._beside)
        try:
            return build_cluster(cluster if self._wanted is None else _resized(cluster, self._wanted))
        except TopologyError as error:
            raise TopologyError(f"{self.origin}: {str(error).removeprefix(f'{name}: ')}") from None

    def node(self, place: TomlPlace) -> Node:
        self.known_fields(place, NODE_FIELDS)
        name, kind = self.text(place, "name"), self.text(place, "kind")
        if kind not in list(NodeKind):
            self.fail(place, "kind", f"no kind of node is called {shown(kind)}{nearest(kind, list(NodeKind))}")
        return Node(name, NodeKind(kind), self.text(place, "machine", ""))

    def links(self, place: TomlPlace) -> list[Link]:
        self.known_fields(place, LINK_FIELDS)
        ends = self.ends(place)
        bytes_per_s = self.quantity(place, "bandwidth", parse_bytes_per_s)
        latency_s = self.quantity(place, "latency", parse_seconds)
        count, wire = place.values.get("count", 1), self.text(place, "wire", "")
        if type(count) is not int or not 1 <= count <= MOST_WIRES:
            self.fail(place, "count", f"count must be a whole number from 1 to {MOST_WIRES:,}, not {shown(count)}")
        return [Link(a, b, bytes_per_s, latency_s, count, wire) for a, b in ends]

    def ends(self, place: TomlPlace) -> list[tuple[str, str]]:
        """Both directions of `between = [a, b]`, or the one of `from` and `to`."""
        if not {"between", "from", "to"} & set(place.values):
            self.fail(place, "between", "is missing; name the two ends of the link")
        if "between" not in place.values:
            return [(self.text(place, "from"), self.text(place, "to"))]
        both = place.values["between"]
        if "from" in place.values or "to" in place.values:
            self.fail(place, "between", "give either between (both ways) or from and to (one way), not all")
        if not (isinstance(both, list) and len(both) == 2 and all(isinstance(name, str) for name in both)):
            self.fail(place, "between", f'expected two names such as ["gpu0", "gpu1"], not {shown(both)}')
        return [(both[0], both[1]), (both[1], both[0])]


def _resized(cluster: Cluster, hosts: int) -> Cluster:
    """So many hosts instead, of each kind in the same proportion."""
    before = sum(group.count for group in cluster.groups)
    if any(group.count * hosts % before for group in cluster.groups):
        counts = " and ".join(str(group.count) for group in cluster.groups)
        raise TopologyError(f"{hosts} hosts can't be {counts} in proportion; take a multiple")
    groups = tuple(replace(group, count=group.count * hosts // before) for group in cluster.groups)
    fabric = cluster.fabric
    if fabric.hosts_a_leaf == before:  # one leaf, or one for each rail, holds them all, however many
        fabric = replace(fabric, hosts_a_leaf=hosts)
    return Cluster(cluster.name, groups, fabric)


def format_toml(topology: Topology) -> str:
    """Text that parse_toml reads back into an equal topology; a pair of equal links becomes one `between`."""
    parts = [f"name = {_quoted(topology.name)}\n"]
    for node in topology.nodes:
        machine = f"machine = {_quoted(node.machine)}\n" if node.machine else ""
        parts.append(f'[[node]]\nname = {_quoted(node.name)}\nkind = "{node.kind}"\n{machine}')
    links, at = topology.links, 0
    while at < len(links):
        link = links[at]
        back = Link(link.target, link.source, link.bytes_per_s, link.latency_s, link.count, link.wire)
        paired = at + 1 < len(links) and links[at + 1] == back
        parts.append(_format_link(link, both_ways=paired))
        at += 1 + paired
    return "\n".join(parts)


def _format_link(link: Link, both_ways: bool) -> str:
    a, b = _quoted(link.source), _quoted(link.target)
    lines = ["[[link]]", *([f"between = [{a}, {b}]"] if both_ways else [f"from = {a}", f"to = {b}"])]
    lines += [f'bandwidth = "{format_bytes_per_s(link.bytes_per_s)}"', f'latency = "{format_seconds(link.latency_s)}"']
    lines += [f"count = {link.count}"] if link.count != 1 else []
    lines += [f"wire = {_quoted(link.wire)}"] if link.wire else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic TOML string: quotes, backslashes and what can't be printed are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped) + '"'
