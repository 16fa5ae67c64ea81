"""Which schedule a sum of gradients takes: the fastest of those that need nobody but its members."""

from functools import lru_cache

from gradtide.schedule.model import Schedule
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.request import NotApplicable, Request
from gradtide.schedule.strategies import STRATEGIES
from gradtide.topology.model import Topology

__all__ = ["schedule_of_sum"]

FEW = 16  # members, up to which all of these are tried
TRIED = ("sharded", "ring", "ring-both-ways", "halving-doubling", "hierarchical", "tree", "root")
TRIED_BY_MANY = ("ring", "halving-doubling", "tree")  # the others lose, and take seconds to simulate
MOST_OPS = 16_384  # what is finer is not simulated among hundreds of other tasks
ENOUGH = 1.02  # of schedules that are that close to the fastest, the one with the fewest ops is taken


@lru_cache(maxsize=512)
def schedule_of_sum(topology: Topology, members: tuple[str, ...], size_bytes: int, latency: bool) -> Schedule | None:
    """Chosen as if nobody else were on the wires. None: no strategy gets along with the links between these."""
    request = Request(topology, members, max(1, size_bytes))
    found: list[tuple[float, Schedule]] = []
    for name in TRIED if len(members) <= FEW else TRIED_BY_MANY:
        try:
            schedule = STRATEGIES[name](request)
        except NotApplicable:
            continue
        if len(schedule.ops) <= MOST_OPS:
            found.append((simulate(schedule, topology, request.size_bytes, latency=latency).seconds, schedule))
    if not found:
        return None
    fastest = min(seconds for seconds, _ in found)
    close = [schedule for seconds, schedule in found if seconds <= fastest * ENOUGH]
    return min(close, key=lambda schedule: len(schedule.ops))
