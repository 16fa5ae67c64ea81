"""Simple ways to cut a topology into groups of nodes: each device, each machine, each rack, each pod, two halves,
and the devices of one machine beside all others."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.request import Request
from gradtide.topology.model import NodeKind

__all__ = ["REST", "Ground", "Partition", "ground_of", "nested", "partitions"]

Ints = NDArray[np.intp]

LEVELS = ("each machine", "each rack", "each pod", "each part of the fabric")
REST = -1  # of a node in no group
MOST_KINDS = 32  # of machines, each of which is looked into once


@dataclass(frozen=True, eq=False)
class Ground:
    """A request's topology as arrays: what every partition is laid over."""

    request: Request
    asked: Ints  # the nodes of the asked devices, in their order
    able: NDArray[np.bool_]  # nodes that may be a rank: asked devices and hosts
    machine: Ints  # of each node, REST where it stands between machines
    edge: NDArray[np.bool_]  # NICs
    tails: Ints
    heads: Ints
    rates: NDArray[np.float64]  # of each link
    wires: Ints  # of each link: links of one number share one capacity
    wire_rates: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Each node's group, or REST. Every group has an asked device, and every asked device a group."""

    kind: str  # as in "each machine"
    groups: Ints


def ground_of(request: Request) -> Ground:
    topology = request.topology
    number = {node.name: at for at, node in enumerate(topology.nodes)}
    machines: dict[str, int] = {}
    machine = [machines.setdefault(node.machine, len(machines)) if node.machine else REST for node in topology.nodes]
    asked = np.array([number[name] for name in request.devices], dtype=np.intp)
    able = np.array([node.kind is NodeKind.HOST for node in topology.nodes])
    able[asked] = True
    rates = np.array([link.bytes_per_s * link.count for link in topology.links])
    shared: dict[str, int] = {}
    wires = np.arange(len(rates))
    for at, link in enumerate(topology.links):
        if link.wire:
            wires[at] = shared.setdefault(link.wire, at)
    wire_rates = np.zeros(len(rates))
    np.maximum.at(wire_rates, wires, rates)  # a wire is as wide as the widest link that names it
    return Ground(
        request=request,
        asked=asked,
        able=able,
        machine=np.array(machine, dtype=np.intp),
        edge=np.array([node.kind is NodeKind.NIC for node in topology.nodes]),
        tails=np.array([number[link.source] for link in topology.links], dtype=np.intp),
        heads=np.array([number[link.target] for link in topology.links], dtype=np.intp),
        rates=rates,
        wires=wires,
        wire_rates=wire_rates,
    )


def partitions(ground: Ground) -> Iterator[Partition]:
    """All that are tried, each with two groups or more."""
    for kind, labels in _labelled(ground):
        groups = _numbered(ground, labels)
        if groups.max() > 0:
            yield Partition(kind, groups)


def _labelled(ground: Ground) -> Iterator[tuple[str, Ints]]:
    alone = np.full(len(ground.able), REST)
    alone[ground.asked] = np.arange(len(ground.asked))
    yield "each device", alone
    inside = ground.machine
    yield "each machine", np.where(ground.able, inside, REST)
    yield "each machine", np.where(ground.edge, REST, inside)
    yield from zip(LEVELS, nested(ground), strict=True)
    yield from _halves(ground)
    yield from _inside(ground)


def _inside(ground: Ground) -> Iterator[tuple[str, Ints]]:
    """Each device of a machine, with what is wired to it alone, and all other machines as one: once for each kind."""
    for number in _kinds(ground):
        here = ground.machine == number
        devices = ground.asked[here[ground.asked]]
        if len(devices) < 2 or len(devices) == len(ground.asked):
            continue  # one device is its machine, and one machine alone is "each device"
        labels = np.where(here, REST, len(devices))
        labels[devices] = np.arange(len(devices))
        owner = np.full(len(here), REST)
        for number, device in enumerate(devices.tolist()):
            wired = ground.heads[(ground.tails == device) & ground.edge[ground.heads]]
            owner[wired] = np.where(owner[wired] == REST, number, len(devices) + 1)  # a NIC that two share is nobody's
        alone = here & ground.edge & (owner != REST) & (owner < len(devices))
        labels[alone] = owner[alone]
        yield "each part inside and beside a machine", labels


def _kinds(ground: Ground) -> list[int]:
    """The first machine of each kind: of those with the same rates on their links."""
    rates: dict[int, list[float]] = {}
    for machine, rate in zip(ground.machine[ground.tails].tolist(), ground.rates.tolist(), strict=True):
        rates.setdefault(machine, []).append(rate)
    firsts: dict[tuple[float, ...], int] = {}
    for machine in dict.fromkeys(ground.machine[ground.asked].tolist()):
        if machine != REST:
            firsts.setdefault(tuple(sorted(rates.get(machine, []))), machine)
    return list(firsts.values())[:MOST_KINDS]


def nested(ground: Ground) -> list[Ints]:
    """Each node's machine; then what hangs together through leaves; through the spines above them; and so on."""
    reach = ground.machine != REST
    found = [ground.machine]
    for _ in LEVELS[1:]:
        reach = _one_further(ground, reach)
        found.append(_components(ground, reach))
    return found


def _halves(ground: Ground) -> Iterator[tuple[str, Ints]]:
    """The first half of the devices and the others, cut between machines; what is wired to one half alone joins it."""
    whole = ground.machine[ground.asked]
    order = np.arange(len(whole)) if len(set(whole.tolist())) == 1 else whole
    half = np.full(len(ground.able), REST)
    half[ground.asked] = order > np.median(order) - (0.5 if len(order) % 2 == 0 else 0.0)
    if len(set(whole.tolist())) > 1:
        of_machine = {int(m): int(h) for m, h in zip(whole, half[ground.asked], strict=True) if m != REST}
        inside = np.array([of_machine.get(int(m), REST) for m in ground.machine])
        half = np.where(half == REST, inside, half)
    for _ in range(4):  # a leaf, a spine, a core
        other = np.where(half[ground.heads] == REST, 2, half[ground.heads])
        least, most = np.full(len(half), 2), np.full(len(half), REST)
        np.minimum.at(least, ground.tails, other)
        np.maximum.at(most, ground.tails, other)
        joins = (half == REST) & (least == most) & (least < 2)
        half[joins] = least[joins]
    yield "each half", half


def _numbered(ground: Ground, labels: Ints) -> Ints:
    """Groups with an asked device, numbered; all other nodes are the rest. An asked device without one is alone."""
    labels = labels.copy()
    lone = ground.asked[labels[ground.asked] == REST]
    labels[lone] = labels.max() + 1 + np.arange(len(lone))
    kept = np.full(labels.max() + 2, REST)
    found = np.zeros(len(kept), dtype=bool)
    found[labels[ground.asked]] = True
    kept[found] = np.arange(found.sum())
    return np.where(labels == REST, REST, kept[labels])


def _one_further(ground: Ground, reach: NDArray[np.bool_]) -> NDArray[np.bool_]:
    further = reach.copy()
    further[ground.heads[reach[ground.tails]]] = True
    further[ground.tails[reach[ground.heads]]] = True
    return further


def _components(ground: Ground, within: NDArray[np.bool_]) -> Ints:
    """Which of these nodes hang together through each other: each takes the lowest number that it hears of."""
    labels = np.where(within, np.arange(len(within)), len(within))
    links = within[ground.tails] & within[ground.heads]
    a, b = ground.tails[links], ground.heads[links]
    while True:
        lowest = labels.copy()
        np.minimum.at(lowest, a, labels[b])
        np.minimum.at(lowest, b, labels[a])
        lowest[within] = lowest[lowest[within]]
        if (lowest == labels).all():
            return np.where(within, labels, REST)
        labels = lowest
