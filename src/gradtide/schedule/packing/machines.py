"""Trees that are alike: every machine adds up on a device of its own, these send to one of them, and all goes back.

A linear programme finds the best packing, but in many different trees, and rounded to few whole ones they crowd some
wires. Where every machine is built the same, a few trees do almost as well: one for each place in a machine, turned
from place to place, so that all devices carry the same. A host helps with a tree of its own, of which it is the head;
it has nothing to add, so all devices send to it directly, and it takes as much of the buffer as evens out the wires.
"""

from dataclasses import replace
from math import lcm

import numpy as np

from gradtide.schedule.packing.linear import LinearProgramme, minimise
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.pieces import Arc, TreeGroup, hop_loads
from gradtide.topology.model import Topology

__all__ = ["alike"]

LEAST_PART = 1e-3  # of the buffer, for a kind of tree to be worth its ops


def alike(network: WireNetwork, topology: Topology) -> list[list[TreeGroup]]:
    """Unit trees, each with its part of the buffer, without the hosts' help, which takes less time to fill, and with.

    None where machines differ, or somebody can't reach another.
    """
    machines = _machines(network, topology)
    kinds = {(len(devices), len(hosts)) for devices, hosts in machines}
    if len(machines) < 2 or len(kinds) > 1 or not machines[0][0]:
        return []
    places, count = len(machines[0][0]), len(machines)
    on_devices = [
        _tree(network, [devices[at % places :] + devices[: at % places] for devices, _ in machines], at % count)
        for at in range(lcm(places, count))
    ]
    on_hosts = [
        _tree(network, [[hosts[0], *devices] for devices, hosts in machines], root)
        for root in range(count if machines[0][1] else 0)
    ]
    if not _possible(network, on_devices + on_hosts):
        return []
    alone = _carrying(on_devices, 1.0)
    return [alone, _weighted(network, on_devices, on_hosts)] if on_hosts else [alone]


def _machines(network: WireNetwork, topology: Topology) -> list[tuple[list[int], list[int]]]:
    """The devices and the hosts in each machine, by number."""
    machine = {node.name: node.machine for node in topology.nodes}
    found: dict[str, tuple[list[int], list[int]]] = {}
    for number, name in enumerate(network.nodes):
        found.setdefault(machine[name], ([], []))[number >= network.devices].append(number)
    return [found[name] for name in sorted(found)]


def _tree(network: WireNetwork, inside: list[list[int]], root: int) -> TreeGroup:
    """Inside each machine to its first node, from these to the root machine's. A host adds up all by itself."""
    heads = [nodes[0] for nodes in inside]
    between = _halving([*heads[root:], *heads[:root]])
    within = [arc for nodes in inside for arc in (_halving(nodes) if nodes[0] < network.devices else _star(nodes))]
    down = [(heads[root], head) for head in heads if head != heads[root]]
    down += [(nodes[0], node) for nodes in inside for node in nodes[1:]]
    return TreeGroup(heads[root], 0.0, (*within, *between), tuple(down))


def _star(nodes: list[int]) -> list[Arc]:
    return [(node, nodes[0]) for node in nodes[1:]]


def _halving(nodes: list[int]) -> list[Arc]:
    """Each of the second half sends to one of the first, until one has all: nobody adds up more than log2 times."""
    arcs = []
    while len(nodes) > 1:
        kept = (len(nodes) + 1) // 2
        arcs += [(nodes[kept + at], nodes[at]) for at in range(len(nodes) - kept)]
        nodes = nodes[:kept]
    return arcs


def _possible(network: WireNetwork, trees: list[TreeGroup]) -> bool:
    return all(network.arc_of[arc] >= 0 for tree in trees for arc in tree.up + tree.down)


def _weighted(network: WireNetwork, on_devices: list[TreeGroup], on_hosts: list[TreeGroup]) -> list[TreeGroup]:
    """The devices' trees carry the same each; the hosts' together what makes the busiest wire least busy."""
    part = _part_of_hosts(network, on_devices, on_hosts)
    if part < LEAST_PART:
        return _carrying(on_devices, 1.0)
    if part > 1.0 - LEAST_PART:
        return _carrying(on_hosts, 1.0)
    turns = max(1, round(part / (1.0 - part) * len(on_devices) / len(on_hosts)))  # wires share evenly between equals
    return _carrying(on_devices, 1.0 - part) + _carrying(on_hosts * turns, part)


def _carrying(trees: list[TreeGroup], part: float) -> list[TreeGroup]:
    return [replace(tree, part=part / len(trees)) for tree in trees]


def _part_of_hosts(network: WireNetwork, on_devices: list[TreeGroup], on_hosts: list[TreeGroup]) -> float:
    unit = float(network.bytes_per_s.max())
    loads = np.stack([hop_loads(network, trees).mean(axis=1) * unit for trees in (on_devices, on_hosts)], axis=1)
    programme = LinearProgramme(
        np.array([1.0, 0.0, 0.0]),
        at_most=np.hstack([-np.ones((len(loads), 1)), loads]),
        limits=np.zeros(len(loads)),
        equal=np.array([[0.0, 1.0, 1.0]]),
        sides=np.ones(1),
    )
    return float(minimise(programme).x[2])
