"""root: one device gathers everything, adds it up, and sends the result to all. The simplest, and rarely the best."""

from gradtide.schedule.build.shapes import star_in, star_out
from gradtide.schedule.build.wiring import need, wiring_of
from gradtide.schedule.build.writer import TreePart, assemble, part_roots
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy


@strategy("root")
def root(request: Request) -> Schedule:
    need(request.collective not in ("reduce_scatter", "all_gather"), "one root can't own every device's part")
    ranks, wiring = range(len(request.devices)), wiring_of(request)
    central = [rank for rank in ranks if all(wiring.both(rank, other) for other in ranks if other != rank)]
    roots = part_roots(request, aggregator=central[0] if central else -1)
    need(roots[0] in central, "no device has a direct route to and from all others")
    return assemble(request, "root", [TreePart(1, roots[0], star_in(roots[0], ranks), star_out(roots[0], ranks))])
