"""A list of hosts, each with the `nvidia-smi topo -m` text of one like it; and such a text as a host to be copied.

# hosts          what nvidia-smi says there    a NIC's rate (100 Gbit/s if left out)
node[00-15]      h100.txt                      400 Gbit/s
node[16-23]      a100.txt                      200 Gbit/s
"""

import re
from collections.abc import Callable
from dataclasses import replace

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import Cluster, HostGroup, build_cluster
from gradtide.topology.clusters.fabrics import Fabric
from gradtide.topology.clusters.host_kinds import HostTemplate
from gradtide.topology.formats.host_names import expand_hosts
from gradtide.topology.formats.nvidia_smi import looks_like_nvidia_smi, parse_nvidia_smi
from gradtide.topology.model import Link, NodeKind, Topology
from gradtide.topology.rates import WireRates
from gradtide.topology.routes import Routes
from gradtide.topology.units import parse_bytes_per_s
from gradtide.topology.validate import check
from gradtide.topology.wording import shown

__all__ = ["host_template", "looks_like_host_list", "parse_host_list"]

NIC_BYTES_PER_S = 12.5e9  # 100 Gbit/s: the text does not say
LINE = re.compile(r"(\S+)\s+(\S+\.(?:txt|out|log|topo))(?:\s+(\S.*))?")


def host_template(
    text: str, origin: str, nic_bytes_per_s: float | None = None, rates: WireRates | None = None
) -> HostTemplate:
    """The machine that `nvidia-smi topo -m` describes, to be copied; its NICs have this rate."""
    if not looks_like_nvidia_smi(text):
        raise TopologyError(f"{origin}: expected the output of `nvidia-smi topo -m`")
    one = parse_nvidia_smi(text, origin, name=origin, rates=rates)
    if not any(node.kind is NodeKind.NIC for node in one.nodes):
        raise TopologyError(f"{origin}: the matrix names no NIC, so nothing joins such hosts; save it where NICs show")
    links = _with_own_nics(one, (rates or WireRates()).pcie)
    return HostTemplate(origin, one.nodes, links, nic_bytes_per_s or NIC_BYTES_PER_S)


def _with_own_nics(one: Topology, pcie: float) -> tuple[Link, ...]:
    """Its links, and from each GPU one more to a NIC of its own: of the nearest ones that which has the fewest so far.

    GPUs that share a switch with several NICs would otherwise all take the first of them. The link is a name for the
    way through the switch: as long, at the GPU's PCIe port, which it shares with all else that the GPU sends there.
    """
    routes, served = Routes(one), dict.fromkeys((n.name for n in one.nodes if n.kind is NodeKind.NIC), 0)
    links, more = list(one.links), []
    for gpu in (node.name for node in one.nodes if node.kind is NodeKind.DEVICE):
        ways = {nic: routes.find(gpu, nic) for nic in served}
        far = {nic: sum(link.latency_s for link in way) for nic, way in ways.items() if way}
        if not far:
            continue
        own = min(far, key=lambda nic: (round(far[nic] * 1e12), served[nic]))
        served[own] += 1
        away, back = f"{gpu} out", f"{gpu} in"
        port = (ways[own] or ())[0].target
        for at, link in enumerate(links):
            if (link.source, link.target) in ((gpu, port), (port, gpu)):
                links[at] = replace(link, wire=away if link.source == gpu else back)
        more += [Link(gpu, own, pcie, far[own], 1, away), Link(own, gpu, pcie, far[own], 1, back)]
    return (*links, *more)


def looks_like_host_list(text: str) -> bool:
    lines = [line.split("#")[0].strip() for line in text[:20_000].split("\n")]
    first = next((line for line in lines if line), "")
    return bool(LINE.fullmatch(first))


def parse_host_list(
    text: str, origin: str, name: str, beside: Callable[[str], str], rates: WireRates | None = None
) -> Topology:
    """The hosts of the list; NIC j of all of them is on one switch, which never blocks."""
    groups: list[HostGroup] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.split("#")[0].strip()
        if not line:
            continue
        where = f"{origin}, line {number}"
        match = LINE.fullmatch(line)
        if not match:
            raise TopologyError(f"{where}: expected hosts and a file, as 'node[0-15] topo.txt 400 Gbit/s'")
        hosts = expand_hosts(match[1], where)
        for host in hosts:
            if seen.setdefault(host, number) != number or hosts.count(host) > 1:
                raise TopologyError(f"{where}: host {shown(host)} is there twice; list each once")
        groups.append(HostGroup(_template(match, where, beside, rates), len(hosts), tuple(hosts)))
    cluster = Cluster(name, tuple(groups), Fabric(sum(group.count for group in groups), rails=True))
    try:
        return check(build_cluster(cluster))
    except TopologyError as error:
        raise TopologyError(f"{origin}: {error}") from None


def _template(match: re.Match[str], where: str, beside: Callable[[str], str], rates: WireRates | None) -> HostTemplate:
    try:
        rate = parse_bytes_per_s(match[3]) if match[3] else None
        return host_template(beside(match[2]), match[2], rate, rates)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
