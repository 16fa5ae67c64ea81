"""tree and double-tree: gather up a tree, spread down it. Few steps, so the best for small buffers."""

from gradtide.schedule.build.shapes import Edge, away, grow, grow_by_machine, grow_doubling, inwards, outwards, towards
from gradtide.schedule.build.wiring import Wiring, machines_of, need, slices_for, wiring_of
from gradtide.schedule.build.writer import TreePart, assemble, part_roots
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy


@strategy("tree")
def tree(request: Request) -> Schedule:
    """One tree; of reduce_scatter and all_gather one per owner. Binary and pipelined where bytes matter; where
    only latency does, data gathers along a binomial tree and spreads from the root straight to all."""
    wiring, machines = wiring_of(request), machines_of(request)
    roots = part_roots(request, aggregator=_center(wiring))
    slices = _slices(request, wiring) if len(roots) == 1 else 1
    parts = []
    for root in roots:
        limb, *fanout = (grow, 2) if slices > 1 else (grow_doubling,)
        up = grow_by_machine(root, machines, towards(wiring), limb, *fanout)
        down = _spread(request, wiring, root, flat=slices == 1)
        parts += [TreePart(1, root, inwards(up), outwards(down))] * slices
    return assemble(request, "tree", parts)


@strategy("double-tree")
def double_tree(request: Request) -> Schedule:
    """Two trees, half the buffer each: who passes on in the one is a leaf of the other, so all links work."""
    need(request.collective not in ("reduce_scatter", "all_gather"), "two roots can't own every device's part")
    wiring, machines = wiring_of(request), machines_of(request)
    slices = max(1, _slices(request, wiring) // 2)
    parts = []
    for channel, groups in enumerate((machines, [ranks[::-1] for ranks in reversed(machines)])):
        root = groups[0][0] if request.collective == "all_reduce" else request.root
        up, down = (grow_by_machine(root, groups, near(wiring), grow, 2) for near in (towards, away))
        parts += [TreePart(1, root, inwards(up), outwards(down), channel)] * slices
    return assemble(request, "double-tree", parts)


def _center(wiring: Wiring) -> int:
    """The first rank that reaches and is reached by most others directly."""
    ranks = range(len(wiring.paths))
    return max(ranks, key=lambda rank: sum(wiring.both(rank, other) for other in ranks if other != rank))


def _slices(request: Request, wiring: Wiring) -> int:
    paths = [path for row in wiring.paths for path in row if path is not None]
    need(bool(paths), "no device reaches another one")
    return slices_for(request, min(p.bytes_per_s for p in paths), max(p.latency_s for p in paths))


def _spread(request: Request, wiring: Wiring, root: int, flat: bool) -> list[Edge]:
    """The tree to spread along: binary, or from the root straight to all if that is allowed and costs less."""
    machines, count = machines_of(request), len(request.devices)
    binary = grow_by_machine(root, machines, away(wiring), grow, 2)
    star = grow(root, range(count), away(wiring), count)
    return min(binary, star, key=lambda edges: _seconds(request, wiring, edges)) if flat else binary


def _seconds(request: Request, wiring: Wiring, edges: list[Edge]) -> float:
    """What spreading down a tree costs, a level after the other, the children of one parent sharing its port."""
    total = 0.0
    for level in outwards(edges):
        busiest = max(sum(1 for a, _ in level if a == parent) for parent, _ in level)
        paths = [wiring.path(*edge) for edge in level]
        width = min(path.bytes_per_s for path in paths)
        total += max(path.latency_s for path in paths) + busiest * request.size_bytes / width
    return total
