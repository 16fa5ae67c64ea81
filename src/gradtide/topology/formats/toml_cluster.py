"""A cluster by counts in TOML: [[hosts]] of a kind, one [fabric] between them, [[override]] for what differs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import MOST_DEVICES, Cluster, HostGroup
from gradtide.topology.clusters.fabrics import MOST_SWITCHES, Fabric
from gradtide.topology.clusters.host_kinds import HOST_KINDS, HostKind, HostTemplate
from gradtide.topology.formats.host_texts import host_template
from gradtide.topology.formats.toml_fields import TomlFields, TomlPlace
from gradtide.topology.model import Topology
from gradtide.topology.rates import RDMA_S
from gradtide.topology.units import parse_bytes_per_s, parse_seconds
from gradtide.topology.what_if import degraded, without
from gradtide.topology.wording import nearest, shown

__all__ = ["CLUSTER_FIELDS", "ReadBeside", "read_cluster", "read_overrides"]

CLUSTER_FIELDS = ("hosts", "fabric", "override")
HOSTS_FIELDS = ("count", "kind", "gpus", "nics", "nic", "inside", "inside_bandwidth", "pcie", "nvidia_smi")
FABRIC_FIELDS = (
    "hosts_per_leaf", "rails", "bandwidth", "latency", "spines", "oversubscription", "hosts_per_pod", "cores",
    "core_oversubscription",
)  # fmt: skip
OVERRIDE_FIELDS = ("name", "times", "missing")
ReadBeside = Callable[[str], str]  # the text of another file, named as seen from this one


def read_cluster(fields: TomlFields, raw: dict[str, Any], name: str, beside: ReadBeside) -> Cluster:
    """What the tables [[hosts]] and [fabric] say."""
    groups = tuple(_hosts(fields, place, beside) for place in fields.tables(raw, "hosts"))
    top = TomlPlace("topology", 0, raw)
    if not groups:
        fields.fail(top, "fabric" if "fabric" in raw else "override", "joins hosts, but no [[hosts]] are described")
    fabric = raw.get("fabric", {})
    if not isinstance(fabric, dict):
        fields.fail(top, "fabric", "write one [fabric] table")
    return Cluster(name, groups, _fabric(fields, TomlPlace("fabric", 0, fabric), groups))


def _hosts(fields: TomlFields, place: TomlPlace, beside: ReadBeside) -> HostGroup:
    fields.known_fields(place, HOSTS_FIELDS)
    count = fields.whole(place, "count", 1, MOST_DEVICES)
    rates = {
        ours: fields.quantity(place, theirs, parse_bytes_per_s)
        for theirs, ours in (
            ("nic", "nic_bytes_per_s"), ("inside_bandwidth", "inside_bytes_per_s"), ("pcie", "pcie_bytes_per_s"),
        )
        if theirs in place.values
    }  # fmt: skip
    if "nvidia_smi" in place.values:
        return HostGroup(_from_matrix(fields, place, rates, beside), count)
    known = fields.text(place, "kind", "dgx-h100")
    if known not in HOST_KINDS:
        fields.fail(place, "kind", f"no kind of host is called {shown(known)}{nearest(known, HOST_KINDS)}")
    kind = HOST_KINDS[known]
    gpus = fields.whole(place, "gpus", 1, 64, kind.gpus)
    nics = fields.whole(place, "nics", 1, 64, kind.nics if "gpus" not in place.values else min(kind.nics, gpus))
    if max(gpus, nics) % min(gpus, nics):
        fields.fail(place, "nics", f"{gpus} GPUs can't share {nics} NICs evenly; take a number that divides")
    kind = replace(kind, gpus=gpus, nics=nics, inside=fields.text(place, "inside", kind.inside))
    for field, rate in rates.items():
        kind = replace(kind, **{field: rate})  # type: ignore[arg-type]
    return HostGroup(replace(kind, inside_wires=1) if "inside_bytes_per_s" in rates else kind, count)


def _from_matrix(
    fields: TomlFields, place: TomlPlace, rates: dict[str, float], beside: ReadBeside
) -> HostKind | HostTemplate:
    for field in ("kind", "gpus", "nics", "inside", "inside_bandwidth", "pcie"):
        if field in place.values:
            fields.fail(place, field, "is said by the file that nvidia_smi names; leave one of them out")
    file = fields.text(place, "nvidia_smi")
    try:
        return host_template(beside(file), file, rates.get("nic_bytes_per_s"))
    except TopologyError as error:
        fields.fail(place, "nvidia_smi", str(error))


def _fabric(fields: TomlFields, place: TomlPlace, groups: tuple[HostGroup, ...]) -> Fabric:
    fields.known_fields(place, FABRIC_FIELDS)
    hosts = sum(group.count for group in groups)
    fastest = max(group.kind.nic_bytes_per_s for group in groups)
    rate = fields.quantity(place, "bandwidth", parse_bytes_per_s) if "bandwidth" in place.values else fastest
    latency_s = fields.quantity(place, "latency", parse_seconds) if "latency" in place.values else RDMA_S / 2
    per_leaf = fields.whole(place, "hosts_per_leaf", 1, MOST_DEVICES, hosts)
    rails = fields.flag(place, "rails", True)
    spines = fields.whole(place, "spines", 0, MOST_SWITCHES, 0)
    fabric = Fabric(per_leaf, rails, rate, edge_latency_s=latency_s)
    if not spines:
        for field in ("oversubscription", "hosts_per_pod", "cores", "core_oversubscription"):
            if field in place.values:
                fields.fail(place, field, "needs spines; say how many")
        return fabric
    down = max(group.kind.nic_bytes_per_s * _nics_on_leaf(group, rails) for group in groups) * per_leaf
    uplinks = _wires(fields, place, "oversubscription", ("leaf", down, rate), ("spines", spines))
    fabric = replace(fabric, uplinks=uplinks, spines=spines)
    return _with_cores(fields, place, fabric, groups)


def _with_cores(fields: TomlFields, place: TomlPlace, fabric: Fabric, groups: tuple[HostGroup, ...]) -> Fabric:
    if not {"cores", "hosts_per_pod"} & set(place.values):
        return fabric
    per_pod = fields.whole(place, "hosts_per_pod", 1, MOST_DEVICES)
    cores = fields.whole(place, "cores", 1, MOST_SWITCHES)
    if per_pod % fabric.hosts_a_leaf:
        text = f"{per_pod} hosts of a pod don't divide into leaves of {fabric.hosts_a_leaf}; take a multiple"
        fields.fail(place, "hosts_per_pod", text)
    if cores % fabric.spines:
        text = f"{cores} cores don't divide among the {fabric.spines} spines of a pod; take a multiple"
        fields.fail(place, "cores", text)
    leaves = per_pod // fabric.hosts_a_leaf
    leaves *= max(group.kind.nic_nodes for group in groups) if fabric.rails else 1
    down = leaves * fabric.uplinks // fabric.spines * fabric.bytes_per_s
    above = cores // fabric.spines
    wires = _wires(fields, place, "core_oversubscription", ("spine", down, fabric.bytes_per_s), ("cores", above))
    groups_a_pod = per_pod // fabric.hosts_a_leaf
    return replace(fabric, groups_a_pod=groups_a_pod, spine_uplinks=wires, cores=above)


def _nics_on_leaf(group: HostGroup, rails: bool) -> int:
    return group.kind.nic_wires * (1 if rails else group.kind.nic_nodes)


def _wires(
    fields: TomlFields, place: TomlPlace, field: str, below: tuple[str, float, float], above: tuple[str, int]
) -> int:
    """How many wires lead up: what comes from below over the oversubscription, in whole wires, as many to each."""
    (what, down, rate), (upper, count) = below, above
    ratio = fields.factor(place, field, 1e-3, 1e3, 1.0)
    wires = down / ratio / rate
    if abs(wires - round(wires)) > 1e-6 or not round(wires):
        text = f"gives a {what} {wires:.4g} wires up of {rate / 1e9:g} GB/s, which must be whole; change it"
        fields.fail(place, field, text)
    if round(wires) % count:
        text = f"{round(wires)} wires of a {what} don't divide among {count} {upper}; take a number that divides"
        fields.fail(place, upper, text)
    return round(wires)


def read_overrides(fields: TomlFields, raw: dict[str, Any], topology: Topology) -> Topology:
    """What [[override]] tables change: one slow NIC, one that is missing."""
    name = topology.name
    for place in fields.tables(raw, "override"):
        fields.known_fields(place, OVERRIDE_FIELDS)
        what, missing = fields.text(place, "name"), fields.flag(place, "missing", default=False)
        if missing == ("times" in place.values):
            fields.fail(place, "times", "give either times, as 0.1, or missing = true")
        factor = 1.0 if missing else fields.factor(place, "times", 1e-6, 1e6)
        try:
            topology = without(topology, what) if missing else degraded(topology, what, factor)
        except TopologyError as error:
            fields.fail(place, "name", str(error))
    return replace(topology, name=name)
