"""hierarchical: inside each machine, then between machines, then back. The slow network carries each byte once."""

from itertools import pairwise, zip_longest

from gradtide.schedule.build.shapes import away, grow, inwards, outwards, towards
from gradtide.schedule.build.wiring import Wiring, machines_of, need, slices_for, wiring_of
from gradtide.schedule.build.writer import Rounds, TreePart, assemble
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy

SLICES = 4  # overlaps the work inside machines with that between them; a ring's parts are slices already


@strategy("hierarchical")
def hierarchical(request: Request) -> Schedule:
    machines = machines_of(request)
    need(len(machines) > 1, "all devices are in one machine")
    need(any(len(ranks) > 1 for ranks in machines), "every machine has only one device")
    wiring = wiring_of(request)
    rooted = request.collective in ("broadcast", "reduce")
    slices = min(SLICES, slices_for(request, *_between(wiring, machines)))
    roots = [request.root] * len(request.devices) if rooted else list(range(len(request.devices)))
    parts = [_part(wiring, machines, root, at) for at, root in enumerate(roots)]
    return assemble(request, "hierarchical", parts * slices)


def _part(wiring: Wiring, machines: list[list[int]], root: int, number: int) -> TreePart:
    """Each machine gathers the part at one device; a chain of those devices joins the machines, root's one last."""
    home = next(at for at, ranks in enumerate(machines) if root in ranks)
    place = machines[home].index(root) if number == root else number
    circle = [*machines[home:], *machines[:home]]
    heads = [root, *(ranks[place % len(ranks)] for ranks in circle[1:])]
    need(all(wiring.reaches(a, b) for a, b in pairwise([*heads, root])), "machines have no route to the next one")
    inside, outside = [], []
    for head, ranks in zip(heads, circle, strict=True):
        at = ranks.index(head)
        order = [*ranks[at:], *ranks[:at]]  # beginning after the head: heads then hear from different devices
        inside.append(inwards(grow(head, order, towards(wiring), len(order))))
        outside.append(outwards(grow(head, order, away(wiring), len(order))))
    up = (*_side_by_side(inside), *(((a, b),) for a, b in pairwise([*heads[1:], root])))
    down = (*(((a, b),) for a, b in pairwise(heads)), *_side_by_side(outside))
    return TreePart(1, root, up, down)


def _side_by_side(machines: list[Rounds]) -> Rounds:
    return tuple(tuple(edge for edges in step for edge in edges) for step in zip_longest(*machines, fillvalue=()))


def _between(wiring: Wiring, machines: list[list[int]]) -> tuple[float, float]:
    """Bandwidth and latency between the first two machines."""
    path = wiring.paths[machines[0][0]][machines[1][0]]
    need(path is not None, "machines have no route to the next one")
    assert path is not None
    return path.bytes_per_s, path.latency_s
