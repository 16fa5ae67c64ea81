"""bound: the time that no schedule's bytes can beat.

Every part of the buffer is summed up at some node, its root, and then spread: over a tree into the root and a tree out
of it. So a schedule is a packing of trees, and the best packing is a linear programme: free root weights over every
device and host, a wire's capacity shared by both directions, and the least time of the busiest wire. By Edmonds'
theorem (1973) that is the same as a flow of one buffer from the roots to each device and one back. An op takes exactly
the route between its two ranks, and switches neither add up nor multiply, so arcs are routes: the bound is true for
every schedule that is written as ops. packing/generate.py solves it (HiGHS) and proves it by the dual's value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gradtide.schedule.model import Collective
from gradtide.schedule.packing.generate import Packing, pack
from gradtide.schedule.packing.network import WireNetwork, network_of
from gradtide.schedule.packing.trees import demand_of, wire_loads
from gradtide.schedule.request import Request
from gradtide.topology.model import NodeKind, Topology

__all__ = ["MOST_NODES", "Bound", "NetworkPacking", "bound", "packed"]

MOST_NODES = 48  # devices and hosts; packing 32 takes about a second, and more than twice as many grow out of reach


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the bandwidth time, latencies left out, and the packing that comes closest to it."""

    seconds: float
    exact: bool  # a packing of trees takes no longer
    root_weights: Mapping[str, float]  # the part of the buffer summed up at each node
    utilisation: Mapping[str, float]  # of each link or shared wire, while that packing runs
    tight: tuple[str, ...]  # what must get faster for the bound to fall, the most valuable first


@dataclass(frozen=True, slots=True, eq=False)
class NetworkPacking:
    """The best packing of a request's network, for any size."""

    network: WireNetwork
    packing: Packing


def bound(request: Request) -> Bound:
    """The lower bound of a request, and what it rests on."""
    if len(request.devices) < 2 or not request.size_bytes:
        return Bound(0.0, True, {}, {}, ())
    if _node_count(request) > MOST_NODES:
        return Bound(request.size_bytes * _counted(request), False, {}, {}, ())
    result = packed(request)
    network, packing = result.network, result.packing
    inward = packing.trees.inward if packing.trees.inward.any() else ~packing.trees.inward
    weights = np.bincount(packing.trees.roots[inward], packing.parts[inward], len(network.nodes))
    busy_s = wire_loads(network, packing.trees) @ packing.parts / network.bytes_per_s
    dearest = [int(wire) for wire in np.argsort(-packing.prices, kind="stable") if packing.prices[wire] > 1e-6]
    return Bound(
        seconds=request.size_bytes * packing.bound,
        exact=packing.seconds_per_byte <= packing.bound * (1 + 1e-6),
        root_weights={network.nodes[i]: float(weights[i]) for i in np.flatnonzero(weights > 1e-9)},
        utilisation=dict(zip(network.wires, (busy_s / packing.seconds_per_byte).tolist(), strict=True)),
        tight=tuple(network.wires[wire] for wire in dearest),
    )


def packed(request: Request) -> NetworkPacking:
    """The best packing, solved once for all sizes."""
    return _packed(request.topology, request.devices, request.collective, request.root)


@lru_cache(maxsize=32)
def _packed(topology: Topology, devices: tuple[str, ...], collective: Collective, root: int) -> NetworkPacking:
    request = Request(topology, devices, 1, collective, root)
    network = network_of(request)
    return NetworkPacking(network, pack(network, demand_of(request, network)))


def _node_count(request: Request) -> int:
    hosts = sum(node.kind is NodeKind.HOST for node in request.topology.nodes)
    return len(request.devices) + hosts


def _counted(request: Request) -> float:
    """Seconds per byte, from counting what must go into and out of all devices together; true, but seldom reached.

    All devices but one must get each byte's result, and all but one must give their contribution. Without a host,
    contributions go into devices and results come out of them, too.
    """
    devices, links = set(request.devices), request.topology.links
    ways = 1 if request.collective != "all_reduce" or _node_count(request) > len(devices) else 2
    into = sum(link.bytes_per_s * link.count for link in links if link.target in devices)
    out = sum(link.bytes_per_s * link.count for link in links if link.source in devices)
    rates = {"all_reduce": (into, out), "reduce": (out,), "reduce_scatter": (out,)}.get(request.collective, (into,))
    return ways * (len(devices) - 1) / min(rates)
