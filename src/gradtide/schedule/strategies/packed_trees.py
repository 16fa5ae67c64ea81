"""packed-trees: the trees of the lower bound's own packing, cut into pieces and pipelined."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.bound import MOST_NODES, NetworkPacking, packed
from gradtide.schedule.build.wiring import need
from gradtide.schedule.build.writer import Writer
from gradtide.schedule.model import Collective, Kind, Schedule
from gradtide.schedule.packing.machines import alike
from gradtide.schedule.packing.network import WireNetwork
from gradtide.schedule.packing.pieces import TreeGroup, cut, groups_of, hop_loads, steps
from gradtide.schedule.packing.shallow import flattened
from gradtide.schedule.packing.side_by_side import SideBySide, in_rounds, side_by_side, whole_trees
from gradtide.schedule.packing.timetable import Timetable, timetable
from gradtide.schedule.packing.trees import demand_of
from gradtide.schedule.request import Request, strategy
from gradtide.topology.model import NodeKind, Topology

GOOD_ENOUGH = 1.03  # times the bound; then nothing else is tried
SLACKS = (0.02, 0.005)  # of the busiest wire: more where routes of several full wires cross
USUAL_OPS = 4_000  # while somebody waits for a plan of a usual size
USUAL_BYTES = 400_000_000
FAR_OPS = 16_000  # of a usual buffer, where that many leave it far from the bound
CROWDED_OPS = 10_000  # where so many arcs cross that no search is made: more take seconds, and gain nothing
FEWER_OPS = 3_000  # ... where many arcs make each of them take longer to simulate
MOST_OPS = 60_000
EXACT = 1_000_000  # weights are parts of about that
CLOSE = 1.05  # times the bound; then timetables, which take long where routes cross, needn't be tried
FAR = 1.1  # times the bound; then even a usual buffer is worth a search for whole trees
MORE = 3  # times the usual ops, where a pipeline takes long to fill
MANY_ARCS = 128  # with more, timetables of all that many ops take seconds to make
SEARCHED_ARCS = 182  # of 12 devices and two hosts; with those of 16, a search for whole trees takes many seconds


@strategy("packed-trees")
def packed_trees(request: Request) -> Schedule:
    hosts = sum(node.kind is NodeKind.HOST for node in request.topology.nodes)
    need(len(request.devices) > 1, "one device alone has nobody to share with")
    need(len(request.devices) + hosts <= MOST_NODES, f"more than {MOST_NODES} devices and hosts take too long to pack")
    return _best(request, packed(request))


def most_ops(size_bytes: int) -> int:
    """Few while somebody waits for a plan of a usual size, more where large buffers make finer pieces worth it."""
    return USUAL_OPS if size_bytes <= USUAL_BYTES else min(MOST_OPS, size_bytes // 16_000)


def _best(request: Request, best: NetworkPacking) -> Schedule:
    """A few pieces if they are enough, else trees side by side or finer timetables, whichever is done first."""
    network, size_bytes = best.network, request.size_bytes
    machines = _alike(request, best)
    if machines is not None:
        return _written(request, network, machines)
    ops = most_ops(size_bytes)
    if len(network.tails) > SEARCHED_ARCS:
        ops = min(ops, CROWDED_OPS)
    groups, cuts = _cuts(request, SLACKS[0], ops)
    latency_s = max(steps(group) for group in groups) * float(network.latency_s.mean())
    enough_s = GOOD_ENOUGH * size_bytes * best.packing.bound + latency_s
    coarse = timetable(network, groups, cuts[0], size_bytes, enough_s)
    if coarse.seconds <= enough_s:  # on one switch: a piece a device, in a hundred ops
        return _written(request, network, coarse)
    plans = (_of_large_buffers if ops > USUAL_OPS else _of_usual_buffers)(request, best, enough_s, ops)
    if ops == USUAL_OPS and not _done(plans, enough_s * FAR / GOOD_ENOUGH):
        plans += _of_large_buffers(request, best, enough_s, FAR_OPS)
    return _written(request, network, min(plans, key=lambda each: each.seconds))


def _of_large_buffers(
    request: Request, best: NetworkPacking, enough_s: float, ops: int
) -> list[SideBySide | Timetable]:
    plans = _side_by_side(request, best, SLACKS, enough_s, ops)
    if _searched(best.network) and not _done(plans, enough_s):
        plans += _whole_trees(request, best, GOOD_ENOUGH, ops)
        enough_s *= CLOSE / GOOD_ENOUGH
    return plans + ([] if _done(plans, enough_s) else _timetables(request, best, SLACKS, enough_s, ops))


def _of_usual_buffers(
    request: Request, best: NetworkPacking, enough_s: float, ops: int
) -> list[SideBySide | Timetable]:
    plans = _side_by_side(request, best, SLACKS[:1], enough_s, ops)
    if not _done(plans, enough_s):
        plans += _timetables(request, best, SLACKS[:1], enough_s, ops)
    far = _searched(best.network) and not _done(plans, enough_s * FAR / GOOD_ENOUGH)
    return plans + (_whole_trees(request, best, FAR, ops) if far else [])


def _side_by_side(
    request: Request, best: NetworkPacking, slacks: tuple[float, ...], enough_s: float, ops: int
) -> list[SideBySide | Timetable]:
    size_bytes, plans = request.size_bytes, list[SideBySide | Timetable]()
    owners = best.network.devices if request.collective in ("reduce_scatter", "all_gather") else 0
    for slack in slacks:
        fair = side_by_side(best.network, _cuts(request, slack, ops)[0], size_bytes, ops, owners)
        plans += [fair] if fair else []
        if _done(plans, enough_s):
            break
    return plans


def _timetables(
    request: Request, best: NetworkPacking, slacks: tuple[float, ...], enough_s: float, ops: int
) -> list[SideBySide | Timetable]:
    plans = list[SideBySide | Timetable]()
    for slack in slacks:
        plan, finer_helps = _finest_that_helps(request, best, slack, enough_s, ops)
        plans.append(plan)
        if not finer_helps or _done(plans, enough_s):  # where it doesn't, latency costs, not crowded wires
            break
    return plans


def _searched(network: WireNetwork) -> bool:
    """Whether a search for whole trees is worth its time."""
    return len(network.tails) <= SEARCHED_ARCS and _crosses(network)


def _whole_trees(request: Request, best: NetworkPacking, close: float, ops: int) -> list[SideBySide | Timetable]:
    """Trees that fit, in more rounds than usual where that takes to come close to the bound."""
    network, size_bytes = best.network, request.size_bytes
    demand, groups = demand_of(request, network), _cuts(request, SLACKS[0], ops)[0]
    found = whole_trees(network, demand, best.packing, groups, size_bytes, MORE * ops)
    if found is None:
        return []
    usual = in_rounds(network, list(found.units), size_bytes, ops)
    return [usual if usual.seconds <= close * size_bytes * best.packing.bound else found]


def _alike(request: Request, best: NetworkPacking) -> SideBySide | None:
    """One tree for each place in a machine, where machines are alike and that keeps no wire busy for much longer."""
    network, size_bytes = best.network, request.size_bytes
    found = alike(network, request.topology) if request.collective == "all_reduce" else []
    if not found or min(_busiest(network, units) for units in found) > GOOD_ENOUGH * best.packing.bound:
        return None
    ops = most_ops(size_bytes)
    if ops == USUAL_OPS and len(network.tails) > MANY_ARCS:
        ops = FEWER_OPS
    return _sooner(network, found, size_bytes, ops)


def _busiest(network: WireNetwork, units: list[TreeGroup]) -> float:
    return float((hop_loads(network, units) @ [unit.part for unit in units]).max())


def _sooner(network: WireNetwork, found: list[list[TreeGroup]], size_bytes: int, ops: int) -> SideBySide:
    plans = [in_rounds(network, units, size_bytes, ops, [round(u.part * EXACT) for u in units]) for units in found]
    return min(plans, key=lambda plan: plan.seconds)


def _done(plans: list[SideBySide | Timetable], enough_s: float) -> bool:
    return any(plan.seconds <= enough_s for plan in plans)


def _crosses(network: WireNetwork) -> bool:
    """Whether several routes share some wire."""
    return bool(((network.wire_load > 0).sum(axis=1) > 1).any())


def _finest_that_helps(
    request: Request, best: NetworkPacking, slack: float, enough_s: float, ops: int
) -> tuple[Timetable, bool]:
    """The timetable from coarse to fine pieces, while that helps, and whether finer ones might do still better."""
    groups, cuts = _cuts(request, slack, ops)
    plan = timetable(best.network, groups, cuts[0], request.size_bytes, enough_s)
    waits = _waits(best.network, groups)
    for counts in cuts[1:]:
        if plan.seconds <= enough_s:
            break
        if plan.seconds < enough_s / GOOD_ENOUGH + float((waits @ counts).max()):
            return plan, False
        tried = timetable(best.network, groups, counts, request.size_bytes, enough_s)
        if tried.seconds < plan.seconds:
            plan = tried
    return plan, True


def _waits(network: WireNetwork, groups: list[TreeGroup]) -> NDArray[np.float64]:
    """wires × groups: how long a piece's latencies keep each wire waiting, where several arcs take turns on it."""
    shared = (network.wire_load > 0).sum(axis=1) > 1
    slow = replace(network, wire_load=network.wire_load * network.latency_s, bytes_per_s=np.ones(len(shared)))
    waits: NDArray[np.float64] = hop_loads(slow, groups) * shared[:, None]
    return waits


def _cuts(request: Request, slack: float, ops: int) -> tuple[list[TreeGroup], list[list[int]]]:
    return _cuts_of(request.topology, request.devices, request.collective, request.root, slack, ops)


@lru_cache(maxsize=32)
def _cuts_of(
    topology: Topology, devices: tuple[str, ...], collective: Collective, root: int, slack: float, ops: int
) -> tuple[list[TreeGroup], list[list[int]]]:
    """Groups, and how many pieces of each to try, from coarse to fine: the numbers that promise the least time."""
    request = Request(topology, devices, 1, collective, root)
    best = packed(request)
    groups = groups_of(flattened(best.network, demand_of(request, best.network), best.packing, slack))
    per_root = collective in ("reduce_scatter", "all_gather")
    step = len(devices) if per_root else 1
    loads, hops = hop_loads(best.network, groups), max(len(group.up) + len(group.down) for group in groups)
    filling = max(steps(group) for group in groups) * float((1 / best.network.bytes_per_s).min())
    most = max(1, (ops if len(best.network.tails) <= MANY_ARCS else ops // 3) // hops // step)
    even: list[list[int]] = []  # the fewest pieces that load wires as evenly as the packing: on a switch, one a device
    promising: dict[int, tuple[float, list[int]]] = {}
    best_load = float((loads @ [group.part for group in groups]).max())
    for pieces in sorted({*range(1, min(most, 64) + 1), *np.geomspace(1, most, 160).astype(int).tolist()}):
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


def _written(request: Request, network: WireNetwork, plan: SideBySide | Timetable) -> Schedule:
    moves, roots = plan.steps(), plan.roots
    helpers = sorted({node for move in moves for node in (move.source, move.target) if node >= network.devices})
    rank = {node: node for node in range(network.devices)}
    rank |= {node: network.devices + at for at, node in enumerate(helpers)}
    writer, filled = Writer(), set[tuple[int, int]]()
    for source_node, target_node, piece, reduces, channel, after in moves:
        source, target = rank[source_node], rank[target_node]
        first = target >= network.devices and (target, piece) not in filled  # a host holds nothing to add to
        filled.add((target, piece))
        kind: Kind = "reduce" if reduces and not first else "copy"
        writer.send(source, target, piece, kind, channel, after)
    return Schedule(
        name="packed-trees",
        collective=request.collective,
        ranks=(*request.devices, *(network.nodes[node] for node in helpers)),
        contributors=network.devices,
        weights=plan.piece_weights,
        ops=tuple(writer.ops),
        owners=() if request.collective == "all_reduce" else tuple(roots),
    )
