"""From what a user calls a strategy to a schedule: by name, from a file, ready-made, or the best of all.

The planner is imported when it is asked: a tenth of a second, that most groups never need.
"""

from itertools import permutations
from pathlib import Path

from gradtide.calling import meant
from gradtide.errors import ConfigError, ScheduleError
from gradtide.schedule.model import Schedule
from gradtide.topology.model import Link, Node, NodeKind, Topology

__all__ = ["Strategy", "check_name", "choose", "nominal_topology"]

Strategy = str | Path | Schedule

_EVEN = 1.05  # a plan that is slower by less is as good, if it has fewer ops: each is a message, and Python's to send
_INSIDE, _BETWEEN = (10e9, 2e-6), (1e9, 50e-6)  # bytes_per_s and latency_s, until somebody measures


def choose(strategy: Strategy, topology: Topology, size_bytes: int) -> Schedule:
    """The schedule for an all-reduce between all devices of the topology. Every rank comes to the same one."""
    if isinstance(strategy, Schedule):
        return strategy
    if isinstance(strategy, Path):
        from gradtide.schedule.serialize import schedule_from_json

        try:
            return schedule_from_json(strategy.read_bytes(), str(strategy))
        except OSError as error:
            raise ScheduleError(f"{strategy}: can't be read ({error.strerror}); write one first") from None
    check_name(strategy)
    if len(topology.nodes) == 1:  # nobody to plan with
        return Schedule(strategy, "all_reduce", (topology.nodes[0].name,), 1, (1,), ())
    from gradtide.schedule.plan import plan, request_for
    from gradtide.schedule.request import NotApplicable
    from gradtide.schedule.strategies import STRATEGIES

    if strategy == "auto":
        table = plan(topology, max(1, size_bytes)).table
        even = [found for found in table if found.seconds <= _EVEN * table[0].seconds]
        return min(even, key=lambda found: (found.op_count, found.seconds)).schedule
    try:
        return STRATEGIES[strategy](request_for(topology, max(1, size_bytes)))
    except NotApplicable as error:
        raise ConfigError(f"strategy {strategy!r} does not fit these ranks ({error}); use 'auto', or another") from None


def check_name(strategy: str) -> None:
    """Refuses a name that no strategy has."""
    from gradtide.schedule.strategies import STRATEGIES

    if strategy != "auto" and strategy not in STRATEGIES:
        near = meant(strategy, STRATEGIES)
        raise ConfigError(f"no strategy is called {strategy!r}{near}; there are auto, {', '.join(sorted(STRATEGIES))}")


def nominal_topology(host_of: list[int]) -> Topology:
    """Every rank linked with every other, fast inside a host and slower between hosts."""
    names = [f"rank{rank}" for rank in range(len(host_of))]
    nodes = [Node(name, NodeKind.DEVICE, f"host{host}") for name, host in zip(names, host_of, strict=True)]
    links = [
        Link(names[a], names[b], *(_INSIDE if host_of[a] == host_of[b] else _BETWEEN))
        for a, b in permutations(range(len(names)), 2)
    ]
    return Topology("nominal", tuple(nodes), tuple(links))
