"""Who can send to whom, and which wires that takes, as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.errors import TopologyError
from gradtide.schedule.request import Request
from gradtide.topology.model import Link, NodeKind
from gradtide.topology.routes import Route, Routes

__all__ = ["WireNetwork", "network_of"]


@dataclass(frozen=True, eq=False)
class WireNetwork:
    """The aggregating nodes (the asked devices, then hosts), an arc for each pair with a route, the wires under them.

    An op takes exactly the route between its two ranks, so a byte on arc a puts wire_load[:, a] bytes on the wires.
    """

    nodes: tuple[str, ...]
    devices: int  # the first so many nodes; the others are hosts
    tails: NDArray[np.intp]
    heads: NDArray[np.intp]
    arc_of: NDArray[np.intp]  # (tail, head) -> arc, -1 where there is no route
    latency_s: NDArray[np.float64]  # of each arc
    wire_load: NDArray[np.float64]  # wires × arcs
    bytes_per_s: NDArray[np.float64]  # of each wire
    wires: tuple[str, ...]


def network_of(request: Request) -> WireNetwork:
    """The network of a request's devices and of the hosts that they can reach and that can reach them."""
    routes = request.routes
    hosts = [node.name for node in request.topology.nodes if node.kind is NodeKind.HOST]
    devices = request.devices
    nodes = (*devices, *(host for host in hosts if _helps(routes, devices, host)))
    found = {(i, j): routes.find(a, b) for i, a in enumerate(nodes) for j, b in enumerate(nodes) if i != j}
    arcs = {pair: route for pair, route in found.items() if route is not None}
    network = _arrays(nodes, len(devices), arcs)
    _require_connected(network)
    return network


def _helps(routes: Routes, devices: tuple[str, ...], host: str) -> bool:
    sent = any(routes.find(device, host) for device in devices)
    return sent and any(routes.find(host, device) for device in devices)


def _arrays(nodes: tuple[str, ...], devices: int, arcs: dict[tuple[int, int], Route]) -> WireNetwork:
    wires: dict[str | Link, int] = {}
    rates: dict[str | Link, float] = {}
    uses: list[tuple[int, int]] = []
    for arc, route in enumerate(arcs.values()):
        for link in route:
            for key in (link, link.wire) if link.wire else (link,):
                uses.append((wires.setdefault(key, len(wires)), arc))
                rates[key] = max(rates.get(key, 0.0), link.bytes_per_s * link.count)
    wire_load = np.zeros((len(wires), len(arcs)))
    if uses:
        np.add.at(wire_load, tuple(np.array(uses).T), 1.0)
    ends = np.array(list(arcs), dtype=np.intp).reshape(-1, 2)
    arc_of = np.full((len(nodes), len(nodes)), -1, dtype=np.intp)
    arc_of[ends[:, 0], ends[:, 1]] = np.arange(len(arcs))
    return WireNetwork(
        nodes=nodes,
        devices=devices,
        tails=ends[:, 0],
        heads=ends[:, 1],
        arc_of=arc_of,
        latency_s=np.array([sum(link.latency_s for link in route) for route in arcs.values()]),
        wire_load=wire_load,
        bytes_per_s=np.array(list(rates.values())),
        wires=tuple(key if isinstance(key, str) else f"{key.source}->{key.target}" for key in wires),
    )


def _require_connected(network: WireNetwork) -> None:
    reaches = (network.arc_of >= 0) | np.eye(len(network.nodes), dtype=bool)
    for _ in range(len(network.nodes).bit_length()):
        reaches = reaches @ reaches
    lost = np.argwhere(~reaches[: network.devices, : network.devices])
    if len(lost):
        a, b = (network.nodes[i] for i in lost[0])
        raise TopologyError(
            f"nothing that {a} sends can reach {b} among the asked devices and hosts: add links or devices"
        )
