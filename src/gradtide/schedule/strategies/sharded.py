"""sharded: each device gathers and adds up its own part of the buffer, then sends it to all others."""

from gradtide.schedule.build.shapes import star_in, star_out
from gradtide.schedule.build.wiring import need, wiring_of
from gradtide.schedule.build.writer import TreePart, assemble
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy


@strategy("sharded")
def sharded(request: Request) -> Schedule:
    ranks, wiring = range(len(request.devices)), wiring_of(request)
    direct = all(wiring.reaches(a, b) for a in ranks for b in ranks if a != b)
    need(direct, "not every pair of devices has a direct route")
    return assemble(request, "sharded", [_part(request, shard) for shard in ranks])


def _part(request: Request, shard: int) -> TreePart:
    """Shard's part; for broadcast and reduce it is passed on from, or to, the one root."""
    ranks, root = range(len(request.devices)), request.root
    if request.collective not in ("broadcast", "reduce") or shard == root:
        return TreePart(1, shard, star_in(shard, ranks), star_out(shard, ranks))
    others = [rank for rank in ranks if rank != root]
    return TreePart(1, root, (*star_in(shard, others), ((shard, root),)), (((root, shard),), *star_out(shard, others)))
