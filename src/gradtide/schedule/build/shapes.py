"""Shapes that builders lay over the wiring: chains along a ring, stars, and trees grown where routes lead."""

import itertools
from collections.abc import Callable, Sequence

from gradtide.schedule.build.wiring import Wiring, need
from gradtide.schedule.build.writer import Rounds, TreePart
from gradtide.schedule.request import NotApplicable, Request

__all__ = [
    "Edge",
    "away",
    "chain_parts",
    "grow",
    "grow_by_machine",
    "grow_doubling",
    "inwards",
    "outwards",
    "star_in",
    "star_out",
    "towards",
]

Edge = tuple[int, int]
Near = Callable[[int, int], float | None]  # how far a child is from a parent, or None where no route leads


UNREACHED = "not every device reaches every other one through the devices asked for"


def away(wiring: Wiring) -> Near:
    """How far data travels from a parent to a child: for trees that spread."""
    return lambda parent, child: wiring.path(parent, child).latency_s if wiring.reaches(parent, child) else None


def towards(wiring: Wiring) -> Near:
    """How far data travels from a child to its parent: for trees that gather."""
    return lambda parent, child: away(wiring)(child, parent)


def chain_parts(request: Request, order: Sequence[int], weight: int, channel: int, slices: int) -> list[TreePart]:
    """Each part goes once round the ring to gather and once to spread; a part per rank, or slices of the root's."""
    rooted = request.collective in ("broadcast", "reduce")
    roots = [request.root] * slices if rooted else list(range(len(order)))
    parts = []
    for root in roots:
        at = order.index(root)
        walk = [*order[at:], *order[:at]]
        down = tuple(((a, b),) for a, b in itertools.pairwise(walk))
        around = [*walk[1:], root]
        up = tuple(((a, b),) for a, b in itertools.pairwise(around))
        parts.append(TreePart(weight, root, up, down, channel))
    return parts


def star_in(root: int, ranks: Sequence[int]) -> Rounds:
    """Everybody sends to the root, one after the other, beginning with who comes after it: roots side by side
    then hear from a different rank in every round."""
    after = [rank for rank in ranks if rank > root] + [rank for rank in ranks if rank < root]
    return tuple(((rank, root),) for rank in after)


def star_out(root: int, ranks: Sequence[int]) -> Rounds:
    """The root sends to everybody at once."""
    return (tuple((root, rank) for rank in ranks if rank != root),)


def grow(root: int, order: Sequence[int], near: Near, fanout: int) -> list[Edge]:
    """Edges (parent, child) of a tree over `order`, in the order they grew, each parent with `fanout` children
    at most where the routes allow it."""
    waiting = [rank for rank in order if rank != root]
    edges: list[Edge] = []
    for limit in (fanout, len(order)):  # where routes are scarce, some parents must take more children
        queue = [root, *(child for _, child in edges)]
        for parent in queue:
            room = limit - sum(1 for a, _ in edges if a == parent)
            distance = {rank: near(parent, rank) for rank in waiting}
            reachable = [rank for rank in waiting if distance[rank] is not None]
            for child in sorted(reachable, key=lambda rank: distance[rank] or 0.0)[: max(0, room)]:
                edges.append((parent, child))
                waiting.remove(child)
                queue.append(child)
    need(not waiting, UNREACHED)
    return edges


def grow_by_machine(
    root: int, machines: Sequence[Sequence[int]], near: Near, limb: Callable[..., list[Edge]], *fanout: int
) -> list[Edge]:
    """A tree of machines and in each machine a tree, so that data enters a machine once. `limb` grows each of them.

    Where the heads of machines have no routes to each other, one tree over all.
    """
    home = next(ranks for ranks in machines if root in ranks)
    place = list(home).index(root)
    heads = {id(ranks): ranks[place % len(ranks)] for ranks in machines}
    try:
        edges = limb(root, list(heads.values()), near, *fanout)
        for ranks in machines:
            head = heads[id(ranks)]
            at = list(ranks).index(head)
            edges = [*edges, *limb(head, [*ranks[at:], *ranks[:at]], near, *fanout)]
        return edges
    except NotApplicable:
        every = sorted(rank for ranks in machines for rank in ranks)
        return limb(root, [*every[every.index(root) :], *every[: every.index(root)]], near, *fanout)


def grow_doubling(root: int, order: Sequence[int], near: Near) -> list[Edge]:
    """A binomial tree where the routes allow it: in every round each member takes one child more."""
    members, waiting = [root], [rank for rank in order if rank != root]
    edges: list[Edge] = []
    while waiting:
        grown = len(edges)
        for parent in list(members):
            reachable = [
                (distance, at) for at, rank in enumerate(waiting) if (distance := near(parent, rank)) is not None
            ]
            if reachable:
                child = waiting.pop(min(reachable)[1])
                edges.append((parent, child))
                members.append(child)
        need(len(edges) > grown, UNREACHED)
    return edges


def outwards(edges: Sequence[Edge]) -> Rounds:
    """A grown tree as rounds from the root to the leaves."""
    depth = {edges[0][0]: 0} if edges else {}
    for parent, child in edges:
        depth[child] = depth[parent] + 1
    last = max(depth.values(), default=0)
    return tuple(tuple(edge for edge in edges if depth[edge[1]] == level) for level in range(1, last + 1))


def inwards(edges: Sequence[Edge]) -> Rounds:
    """A grown tree as rounds from the leaves to the root: who has all of its children's parts sends.

    A parent hears first from whose part is ready first; two children of one parent never share a round.
    """
    height: dict[int, int] = {}
    busy: dict[int, int] = {}
    rounds: dict[int, list[Edge]] = {}
    children: dict[int, list[int]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
    for node in [*(child for _, child in reversed(edges)), *([edges[0][0]] if edges else [])]:
        for child in sorted(children.get(node, []), key=lambda rank: height[rank]):
            step = max(height[child], busy.get(node, 0))
            rounds.setdefault(step, []).append((child, node))
            busy[node] = step + 1
        height[node] = busy.get(node, 0)
    return tuple(tuple(rounds[step]) for step in sorted(rounds))
