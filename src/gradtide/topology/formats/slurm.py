"""Slurm's topology.conf (topology/tree) as a topology: switches over switches over hosts.

The file says which nodes and which switches hang on a switch, no more. So each host is of one kind (`kind`), with all
its NICs on its switch. LinkSpeed, whose unit Slurm leaves open, is taken as Gbit/s of the link down to each child;
where it is missing, a NIC has its own rate and a switch as much as all that hangs below it.
"""

import re
from dataclasses import dataclass

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import MOST_DEVICES
from gradtide.topology.clusters.host_kinds import HOST_KINDS, HostKind, check_host_kind, wire_host
from gradtide.topology.formats.host_names import expand_hosts
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.rates import RDMA_S, SWITCH_S
from gradtide.topology.validate import check
from gradtide.topology.wording import nearest, shown

__all__ = ["looks_like_slurm", "parse_slurm"]

KEYS = ("switchname", "nodes", "switches", "linkspeed")
FIRST = re.compile(r"switchname\s*=", re.IGNORECASE)
PAIR = re.compile(r"([A-Za-z_]+)\s*=\s*(\S+)")


@dataclass(frozen=True, slots=True)
class _Switch:
    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    bytes_per_s: float | None  # of the link to each child
    where: str


def looks_like_slurm(text: str) -> bool:
    lines = (line.split("#")[0].strip() for line in text[:20_000].split("\n"))
    return bool(FIRST.match(next((line for line in lines if line), "")))


def parse_slurm(text: str, origin: str, name: str, kind: HostKind | None = None) -> Topology:
    """The checked topology of a topology.conf whose hosts are all of this kind (a pcie-box with one GPU if unsaid)."""
    switches = _read(text, origin)
    kind = kind or HostKind("host", 1, 1, HOST_KINDS["pcie-box"].nic_bytes_per_s)
    check_host_kind(kind, origin)
    hosts = [host for switch in switches.values() for host in switch.hosts]
    if len(hosts) * kind.gpus > MOST_DEVICES:
        raise TopologyError(
            f"{origin}: {len(hosts) * kind.gpus:,} devices; at most {MOST_DEVICES:,} can be planned for"
        )
    nodes: list[Node] = []
    links: list[Link] = []
    for host in hosts:
        some_nodes, some_links = wire_host(kind, host)
        nodes += some_nodes
        links += some_links
    _check_names(switches, {node.name for node in nodes} | set(hosts))
    nodes += [Node(switch, NodeKind.SWITCH) for switch in switches]
    below = _rates_below(switches, kind)
    for switch in switches.values():
        links += _down(switch, kind, below)
    try:
        return check(Topology(name, tuple(nodes), tuple(links)))
    except TopologyError as error:
        raise TopologyError(f"{origin}: {error}") from None


def _read(text: str, origin: str) -> dict[str, _Switch]:
    switches: dict[str, _Switch] = {}
    at: dict[str, str] = {}  # the line that each host or switch hangs on
    joined = re.sub(r"\\\n", lambda _: " \x00", text)  # a line that goes on; the mark keeps the numbers right
    number = 0
    for raw in joined.split("\n"):
        number += 1
        where = f"{origin}, line {number}"
        number += raw.count("\x00")
        line = raw.replace("\x00", "").split("#")[0].strip()
        if not line:
            continue
        switch = _switch(line, where)
        if switch.name in switches:
            raise TopologyError(f"{where}: switch {shown(switch.name)} is there twice; join its lines")
        switches[switch.name] = switch
        for child in (*switch.hosts, *switch.switches):
            if child in at:
                raise TopologyError(f"{where}: {shown(child)} already hangs on a switch ({at[child]}); a tree has one")
            at[child] = where
    return switches


def _switch(line: str, where: str) -> _Switch:
    values = {key.lower(): value for key, value in PAIR.findall(line)}
    if PAIR.sub("", line).strip() or "switchname" not in values:
        raise TopologyError(f"{where}: expected SwitchName=... with Nodes=... or Switches=..., not {shown(line)}")
    for key in values:
        if key not in KEYS:
            raise TopologyError(f"{where}: topology/tree has no {shown(key)}{nearest(key, KEYS)}")
    speed = values.get("linkspeed")
    if speed is not None and not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", speed):
        raise TopologyError(f"{where}: LinkSpeed is taken as Gbit/s, a number such as 400, not {shown(speed)}")
    rate = float(speed) * 1e9 / 8 if speed else None
    if rate == 0:
        raise TopologyError(f"{where}: LinkSpeed must be above zero")
    hosts = tuple(expand_hosts(values["nodes"], where)) if "nodes" in values else ()
    below = tuple(expand_hosts(values["switches"], where)) if "switches" in values else ()
    names = expand_hosts(values["switchname"], where)
    if len(names) > 1:
        raise TopologyError(f"{where}: {shown(values['switchname'])} are {len(names)} switches; write a line for each")
    return _Switch(names[0], hosts, below, rate, where)


def _check_names(switches: dict[str, _Switch], hosts: set[str]) -> None:
    for switch in switches.values():
        if switch.name in hosts:
            raise TopologyError(f"{switch.where}: {shown(switch.name)} is a host as well; give the switch its own name")
        for child in switch.switches:
            if child not in switches:
                raise TopologyError(f"{switch.where}: switch {shown(child)} is not described{nearest(child, switches)}")


def _rates_below(switches: dict[str, _Switch], kind: HostKind) -> dict[str, float]:
    """What all that hangs below each switch can send, children before parents."""
    own = kind.nic_bytes_per_s * kind.nics
    found: dict[str, float] = {}
    left = list(switches.values())
    while left:
        ready = [switch for switch in left if all(child in found for child in switch.switches)]
        if not ready:
            raise TopologyError(
                f"{left[0].where}: switch {shown(left[0].name)} hangs below itself; a tree has no circle"
            )
        for switch in ready:
            hosts = len(switch.hosts) * (min(own, switch.bytes_per_s * kind.nics) if switch.bytes_per_s else own)
            found[switch.name] = hosts + sum(switch.bytes_per_s or found[child] for child in switch.switches)
        left = [switch for switch in left if switch.name not in found]
    return found


def _down(switch: _Switch, kind: HostKind, below: dict[str, float]) -> list[Link]:
    nic = switch.bytes_per_s or kind.nic_bytes_per_s
    ends = [(f"{host}.{name}", nic, RDMA_S / 2, kind.nic_wires) for host in switch.hosts for name in kind.nic_names]
    ends += [(child, switch.bytes_per_s or below[child], SWITCH_S, 1) for child in switch.switches]
    return [
        link
        for child, rate, latency_s, wires in ends
        for link in (Link(child, switch.name, rate, latency_s, wires), Link(switch.name, child, rate, latency_s, wires))
    ]
