"""bound: the time that no schedule's bytes can beat.

Every part of the buffer is summed up at some node, its root, and then spread: over a tree into the root and a tree out
of it. So a schedule is a packing of trees, and the best packing is a linear programme: free root weights over every
device and host, a wire's capacity shared by both directions, and the least time of the busiest wire. By Edmonds'
theorem (1973) that is the same as a flow of one buffer from the roots to each device and one back. An op takes exactly
the route between its two ranks, and switches neither add up nor multiply, so arcs are routes: the bound is true for
every schedule that is written as ops. packing/generate.py solves it (HiGHS) and proves it by the dual's value.

Simple cuts (cuts/) hold at any size, and the bound is the larger of the two: they are all there is where the programme
would be too large to solve, and where it is solved they can only make it tighter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gradtide.errors import TopologyError
from gradtide.schedule.cuts.crossing import TightCut, tightest
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
    reason: str = ""  # in words, where a simple cut says as much: 8 machines must send 14 times the buffer in all


@dataclass(frozen=True, slots=True, eq=False)
class NetworkPacking:
    """The best packing of a request's network, for any size."""

    network: WireNetwork
    packing: Packing


def bound(request: Request) -> Bound:
    """The lower bound of a request, and what it rests on."""
    if len(request.devices) < 2 or not request.size_bytes:
        return Bound(0.0, True, {}, {}, ())
    result = packed(request) if _node_count(request) <= MOST_NODES else None
    cut = tightest(request)
    if result is None:
        return _by_cut(request, cut)
    network, packing = result.network, result.packing
    inward = packing.trees.inward if packing.trees.inward.any() else ~packing.trees.inward
    weights = np.bincount(packing.trees.roots[inward], packing.parts[inward], len(network.nodes))
    busy_s = wire_loads(network, packing.trees) @ packing.parts / network.bytes_per_s
    dearest = [int(wire) for wire in np.argsort(-packing.prices, kind="stable") if packing.prices[wire] > 1e-6]
    return Bound(
        seconds=request.size_bytes * max(packing.bound, cut.seconds_per_byte),
        exact=packing.seconds_per_byte <= packing.bound * (1 + 1e-6),
        root_weights={network.nodes[i]: float(weights[i]) for i in np.flatnonzero(weights > 1e-9)},
        utilisation=dict(zip(network.wires, (busy_s / packing.seconds_per_byte).tolist(), strict=True)),
        tight=tuple(network.wires[wire] for wire in dearest),
        reason=cut.reason if cut.seconds_per_byte >= packing.bound * (1 - 1e-6) else "",
    )


def _by_cut(request: Request, cut: TightCut) -> Bound:
    if cut.seconds_per_byte == float("inf"):
        raise TopologyError(f"{request.topology.name}: {cut.reason}, but no link leads there; add links or devices")
    links = [request.topology.links[at] for at in cut.links]
    names = tuple(f"{link.source}->{link.target}" for link in links)
    return Bound(request.size_bytes * cut.seconds_per_byte, False, {}, {}, names, cut.reason)


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
