"""packed-trees: the trees of the lower bound's own packing, cut into pieces and pipelined."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.bound import MOST_NODES, Packed, packed
from gradtide.schedule.model import Collective, Kind, Schedule
from gradtide.schedule.packing.network import Network
from gradtide.schedule.packing.pieces import Group, cut, groups_of, hop_loads, steps
from gradtide.schedule.packing.shallow import flattened
from gradtide.schedule.packing.timetable import Timetable, timetable
from gradtide.schedule.packing.trees import demand_of
from gradtide.schedule.request import Request, strategy
from gradtide.schedule.simulate import simulate
from gradtide.schedule.wiring import need
from gradtide.schedule.writer import Writer
from gradtide.topology.model import NodeKind, Topology

MOST_OPS = 12_000  # proving and simulating more takes too long while somebody waits for a plan
GOOD_ENOUGH = 1.03  # times the bound; then nothing finer is tried
# The busiest wire's slack, and how many pieces share a wire: more where routes of several wires cross.
FIRST, OTHERS = (0.005, 1), ((0.02, 1), (0.005, 4))
FEW_ARCS = 64  # with more, simulating pieces abreast takes seconds, and gained nothing on clusters


@strategy("packed-trees")
def packed_trees(request: Request) -> Schedule:
    hosts = sum(node.kind is NodeKind.HOST for node in request.topology.nodes)
    need(len(request.devices) > 1, "one device alone has nobody to share with")
    need(len(request.devices) + hosts <= MOST_NODES, f"more than {MOST_NODES} devices and hosts take too long to pack")
    best = packed(request)
    return _best(request, best)


def _best(request: Request, best: Packed) -> Schedule:
    """From coarse to fine pieces while that helps; if it isn't enough, other ways, and the simulator judges."""
    groups, _ = _cuts(request, FIRST[0])
    latency_s = max(steps(group) for group in groups) * float(best.network.latency_s.mean())
    enough_s = GOOD_ENOUGH * request.size_bytes * best.packing.bound + latency_s
    plan, fineness, finer_helps = _finest_that_helps(request, best, enough_s)
    plans = [plan]
    for slack, abreast in OTHERS if finer_helps else ():  # else it is latency that costs, not crowded wires
        if plans[-1].seconds > enough_s and (abreast == 1 or len(best.network.tails) <= FEW_ARCS):
            groups, cuts = _cuts(request, slack)
            counts = cuts[min(fineness, len(cuts) - 1)]
            plans.append(timetable(best.network, groups, counts, request.size_bytes, enough_s, abreast))
    written = [_written(request, best.network, each) for each in plans]
    if len(written) == 1:
        return written[0]
    return min(written, key=lambda each: simulate(each, request.topology, request.size_bytes).seconds)


def _finest_that_helps(request: Request, best: Packed, enough_s: float) -> tuple[Timetable, int, bool]:
    """The plan, how fine it is, and whether finer ones might do still better."""
    slack, abreast = FIRST
    groups, cuts = _cuts(request, slack)
    plan = timetable(best.network, groups, cuts[0], request.size_bytes, enough_s, abreast)
    fineness, waits = 0, _waits(best.network, groups)
    for at, counts in enumerate(cuts[1:], 1):
        if plan.seconds <= enough_s:
            break
        if plan.seconds < enough_s / GOOD_ENOUGH + float((waits @ counts).max()):
            return plan, fineness, False
        tried = timetable(best.network, groups, counts, request.size_bytes, enough_s, abreast)
        if tried.seconds < plan.seconds:
            plan, fineness = tried, at
    return plan, fineness, True


def _waits(network: Network, groups: list[Group]) -> NDArray[np.float64]:
    """wires × groups: how long a piece's latencies keep each wire waiting, where several arcs take turns on it."""
    shared = (network.wire_load > 0).sum(axis=1) > 1
    slow = replace(network, wire_load=network.wire_load * network.latency_s, bytes_per_s=np.ones(len(shared)))
    waits: NDArray[np.float64] = hop_loads(slow, groups) * shared[:, None]
    return waits


def _cuts(request: Request, slack: float) -> tuple[list[Group], list[list[int]]]:
    return _cuts_of(request.topology, request.devices, request.collective, request.root, slack)


@lru_cache(maxsize=32)
def _cuts_of(
    topology: Topology, devices: tuple[str, ...], collective: Collective, root: int, slack: float
) -> tuple[list[Group], list[list[int]]]:
    """Groups, and how many pieces of each to try, from coarse to fine: the numbers that promise the least time."""
    request = Request(topology, devices, 1, collective, root)
    best = packed(request)
    groups = groups_of(flattened(best.network, demand_of(request, best.network), best.packing, slack))
    per_root = collective in ("reduce_scatter", "all_gather")
    step = len(devices) if per_root else 1
    loads, hops = hop_loads(best.network, groups), max(len(group.up) + len(group.down) for group in groups)
    filling = max(steps(group) for group in groups) * float((1 / best.network.bytes_per_s).min())
    most_ops = MOST_OPS if len(best.network.tails) <= 2 * FEW_ARCS else MOST_OPS // 3
    most = max(1, most_ops // hops // step)
    even: list[list[int]] = []  # the fewest pieces that load wires as evenly as the packing: on a switch, one a device
    promising: dict[int, tuple[float, list[int]]] = {}
    best_load = float((loads @ [group.part for group in groups]).max())
    for pieces in np.unique(np.r_[1 : min(most, 64) + 1, np.geomspace(1, most, 160).astype(int)]).tolist():
        counts = cut(groups, pieces * step, per_root)
        busiest = float((loads @ counts).max()) / (pieces * step)
        if not even and busiest < 1.002 * best_load:
            even = [counts.tolist()]
        promised = busiest + filling / (pieces * step)
        fineness = pieces.bit_length() // 2
        if fineness not in promising or promised < promising[fineness][0] * (1 - 1e-9):
            promising[fineness] = (promised, counts.tolist())
    finer = [counts for _, counts in promising.values() if not even or sum(counts) > sum(even[0])]
    return groups, even + finer


def _written(request: Request, network: Network, plan: Timetable) -> Schedule:
    helpers = sorted({node for hop in plan.hops for node in (hop.source, hop.target) if node >= network.devices})
    rank = {node: node for node in range(network.devices)}
    rank |= {node: network.devices + at for at, node in enumerate(helpers)}
    writer, filled = Writer(), set[tuple[int, int]]()
    for hop in plan.hops:
        source, target = rank[hop.source], rank[hop.target]
        first = target >= network.devices and (target, hop.piece) not in filled  # a host holds nothing to add to
        filled.add((target, hop.piece))
        kind: Kind = "reduce" if hop.reduces and not first else "copy"
        writer.send(source, target, hop.piece, kind, hop.piece % plan.abreast)
        deps = {*writer.ops[-1].deps, *(earlier.number for earlier in hop.after)}
        writer.ops[-1] = writer.ops[-1]._replace(deps=tuple(sorted(deps)))
    return Schedule(
        name="packed-trees",
        collective=request.collective,
        ranks=(*request.devices, *(network.nodes[node] for node in helpers)),
        contributors=network.devices,
        weights=(1,) * plan.pieces,
        ops=tuple(writer.ops),
        owners=() if request.collective == "all_reduce" else tuple(plan.roots),
    )
