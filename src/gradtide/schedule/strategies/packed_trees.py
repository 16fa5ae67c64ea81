"""packed-trees: the trees of the lower bound's own packing, cut into pieces and pipelined."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.bound import MOST_NODES, Packed, packed
from gradtide.schedule.model import Collective, Op, Schedule
from gradtide.schedule.packing.network import Network
from gradtide.schedule.packing.pieces import Group, cut, groups_of, hop_loads, steps
from gradtide.schedule.packing.shallow import flattened
from gradtide.schedule.packing.timetable import Timetable, timetable
from gradtide.schedule.packing.trees import demand_of
from gradtide.schedule.request import Request, strategy
from gradtide.schedule.wiring import need
from gradtide.schedule.writer import Writer
from gradtide.topology.model import NodeKind, Topology

MOST_OPS = 12_000  # proving and simulating more takes too long while somebody waits for a plan
GOOD_ENOUGH = 1.03  # times the bound; then nothing finer is tried
SLACKS = (0.005, 0.025)  # of the busiest wire: little where trees lie side by side, more where routes cross


@strategy("packed-trees")
def packed_trees(request: Request) -> Schedule:
    hosts = sum(node.kind is NodeKind.HOST for node in request.topology.nodes)
    need(len(request.devices) > 1, "one device alone has nobody to share with")
    need(len(request.devices) + hosts <= MOST_NODES, f"more than {MOST_NODES} devices and hosts take too long to pack")
    best = packed(request)
    return _written(request, best.network, _best_timetable(request, best))


def _best_timetable(request: Request, best: Packed) -> Timetable:
    """The fastest of a few: from coarse to fine pieces while that helps, and again with more slack if need be."""
    least_s = request.size_bytes * best.packing.bound
    fastest: Timetable | None = None
    for slack in SLACKS:
        groups = _groups(request.topology, request.devices, request.collective, request.root, slack)
        before_s = math.inf
        for counts in _cuts(request, best.network, groups):
            tried = timetable(best.network, groups, counts.tolist(), request.size_bytes, least_s)
            if fastest is None or tried.seconds < fastest.seconds:
                fastest = tried
            if tried.seconds > before_s or tried.seconds < GOOD_ENOUGH * least_s:
                break
            before_s = tried.seconds
        if fastest is not None and fastest.seconds < GOOD_ENOUGH * least_s:
            break
    assert fastest is not None
    return fastest


@lru_cache(maxsize=32)
def _groups(
    topology: Topology, devices: tuple[str, ...], collective: Collective, root: int, slack: float
) -> list[Group]:
    request = Request(topology, devices, 1, collective, root)
    best = packed(request)
    return groups_of(flattened(best.network, demand_of(request, best.network), best.packing, slack))


def _cuts(request: Request, network: Network, groups: list[Group]) -> list[NDArray[np.intp]]:
    """Numbers of pieces to try, from coarse to fine: of each fineness the one that promises the least time."""
    per_root = request.collective in ("reduce_scatter", "all_gather")
    step = len(request.devices) if per_root else 1
    loads, hops = hop_loads(network, groups), max(len(group.up) + len(group.down) for group in groups)
    filling = max(steps(group) for group in groups) * float((1 / network.bytes_per_s).min())
    best: dict[int, tuple[float, NDArray[np.intp]]] = {}
    for pieces in range(step, max(step, MOST_OPS // hops) + 1, step):
        counts = cut(groups, pieces, per_root)
        promised = (float((loads @ counts).max()) + filling) / pieces
        fineness = (pieces // step).bit_length() // 2
        if fineness not in best or promised < best[fineness][0] * (1 - 1e-9):
            best[fineness] = (promised, counts)
    return [counts for _, counts in best.values()]


def _written(request: Request, network: Network, plan: Timetable) -> Schedule:
    helpers = sorted({node for hop in plan.hops for node in (hop.source, hop.target) if node >= network.devices})
    rank = {node: node for node in range(network.devices)}
    rank |= {node: network.devices + at for at, node in enumerate(helpers)}
    writer, filled = Writer(), set[tuple[int, int]]()
    for hop in plan.hops:
        source, target = rank[hop.source], rank[hop.target]
        first = target >= network.devices and (target, hop.piece) not in filled  # a host holds nothing to add to
        filled.add((target, hop.piece))
        writer.send(source, target, hop.piece, "reduce" if hop.reduces and not first else "copy")
        deps = {*writer.ops[-1].deps, *(earlier.number for earlier in hop.after)}
        writer.ops[-1] = Op(*writer.ops[-1][:5], deps=tuple(sorted(deps)))
    return Schedule(
        name="packed-trees",
        collective=request.collective,
        ranks=(*request.devices, *(network.nodes[node] for node in helpers)),
        contributors=network.devices,
        weights=(1,) * plan.pieces,
        ops=tuple(writer.ops),
        owners=() if request.collective == "all_reduce" else tuple(plan.roots),
    )
