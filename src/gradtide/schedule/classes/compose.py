"""Schedules that are composed: inside a machine, between the machines of a rack, between racks, all at once.

Each is a handful of ways over the grid's axes; how finely they are sliced, the simulation decides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gradtide.schedule.build.wiring import machines_of, need
from gradtide.schedule.classes.folded import simulate_folded
from gradtide.schedule.classes.generated import GeneratedSchedule
from gradtide.schedule.classes.grids import Grid, grid_of
from gradtide.schedule.classes.seed import Course, Leg, seed_of
from gradtide.schedule.model import Schedule
from gradtide.schedule.predict.simulate import Simulation, simulate
from gradtide.schedule.request import Request

__all__ = ["COMPOSED", "Composed", "compose", "tree", "tree_run"]

MOST_SEED_OPS = 24_000  # half a second to simulate
MOST_SLICES = 64
WORTH = 0.995  # of the time with half as many slices: else finer ones cost more ops than they save
WORTH_OF_FEW = 0.998  # the same of up to FEW devices, which take little time to simulate
LEAST_CHUNK = 4  # bytes: no element is cut
WIDEST_DIRECT = 128  # places that one rank sends to at once
MOST_ROUTES = 100_000  # of such a schedule: five seconds
LONGEST_RING = 64
MOST_IN_FULL = 40_000  # ops that are simulated one by one where machines differ: two seconds
FEW = 16  # devices: in one machine, or one to a machine, other strategies do the same


@dataclass(frozen=True, eq=False)
class Composed:
    """A generated schedule, sliced as finely as pays, and its prediction."""

    schedule: GeneratedSchedule
    run: Simulation
    exact: bool  # as if the whole list had been simulated, or it was; else machines differ, and it is an estimate


def compose(request: Request, name: str) -> Composed:
    """The composition of this name for a request."""
    grid = _worthwhile(request)
    need(request.collective not in ("broadcast", "reduce"), "every device would own a part, but there is one root")
    need(len(request.devices) > 1, "one device alone has nobody to share with")
    ways_of = COMPOSED[name]
    parts = len(ways_of(grid, 1)) * len(request.devices)
    need(request.size_bytes >= LEAST_CHUNK * parts, f"{request.size_bytes} bytes don't cut into {parts} parts")
    best = None
    slices = 1
    worth = WORTH if len(request.devices) > FEW else WORTH_OF_FEW
    while best is None or _finer_may_help(request, slices, parts):
        found = _sliced(request, grid, name, ways_of(grid, slices))
        if best is not None and (found.run.seconds > worth * best.run.seconds or _too_long(found)):
            break
        best, slices = found, 2 * slices
    return _in_full(request, best) if not best.exact and not _too_long(best) else best


def _too_long(found: Composed) -> bool:
    """Whether it would have to be simulated in full, and that would take long."""
    return not found.exact and found.schedule.op_count > MOST_IN_FULL


def _in_full(request: Request, found: Composed) -> Composed:
    run = simulate(found.schedule.listed(), request.topology, request.size_bytes)
    return Composed(found.schedule, run, True)


def tree_run(request: Request, *, latency: bool = True) -> Simulation:
    """The tree's prediction by classes: as if all ranks were the root of one at once, so no sooner than one alone."""
    grid = _worthwhile(request)
    schedule = GeneratedSchedule(_tree_seed(request, grid), grid.turns)
    size_bytes = request.size_bytes * grid.turns.count
    run, _ = simulate_folded(schedule, grid.routes, size_bytes, latency=latency)
    return replace(
        run,
        link_bytes=run.link_bytes / grid.turns.count,
        busiest_seconds=run.busiest_seconds / grid.turns.count,
        wire_bytes=run.wire_bytes / grid.turns.count,
    )


def tree(request: Request) -> Schedule:
    """One tree over all, in every machine, rack and pod. The fewest steps, so the best for the smallest sizes."""
    need(request.collective not in ("reduce_scatter", "all_gather"), "one root can't own every device's part")
    grid = _worthwhile(request)
    schedule = GeneratedSchedule(_tree_seed(request, grid), grid.turns).owned_by(request.root)
    names, find = schedule.ranks, request.routes.find
    ways = {(op.src, op.dst) for op in schedule.ops}
    need(all(find(names[a], names[b]) is not None for a, b in ways), "not every pair of the tree has a direct route")
    return schedule


def _tree_seed(request: Request, grid: Grid) -> Schedule:
    need(not grid.torus, "a torus has no direct routes to halve along")
    way = Course(tuple(Leg(axis, "halving", "halving") for axis in _inner_first(grid)))
    return seed_of("hierarchical-tree", request.collective, grid.ranks, grid.turns, [way])


def _worthwhile(request: Request) -> Grid:
    grid = grid_of(request)
    alone = not grid.torus and len(machines_of(request)) == 1
    need(not alone or len(request.devices) > FEW, "all devices are in one machine")
    need(alone or grid.torus or len(grid.turns.sides) > 1 or len(request.devices) > FEW, "each machine has one device")
    return grid


def _finer_may_help(request: Request, slices: int, parts: int) -> bool:
    return (
        slices <= MOST_SLICES
        and 2 * slices * parts <= MOST_SEED_OPS
        and request.size_bytes >= LEAST_CHUNK * slices * parts
    )


def _sliced(request: Request, grid: Grid, name: str, ways: list[Course]) -> Composed:
    seed = seed_of(name, request.collective, grid.ranks, grid.turns, ways)
    schedule = GeneratedSchedule(seed, grid.turns)
    run, exact = simulate_folded(schedule, grid.routes, request.size_bytes)
    return Composed(schedule, run, exact)


def _inner_first(grid: Grid) -> range:
    return range(len(grid.turns.sides) - 1, -1, -1)


def _halving(grid: Grid, slices: int) -> list[Course]:
    """Exchange halves, then quarters, …: the fewest steps that share the work out."""
    need(not grid.torus, "a torus has no direct routes to halve along")
    return [Course(tuple(Leg(axis, "halving", "halving") for axis in _inner_first(grid)), slices)]


def _direct(grid: Grid, slices: int) -> list[Course]:
    """Halving to gather, then every owner straight to all others along an axis: fewer steps still."""
    need(not grid.torus, "a torus has no direct routes to spread over")
    need(max(grid.turns.sides) <= WIDEST_DIRECT, f"more than {WIDEST_DIRECT} places to send to at once")
    need(sum(grid.turns.sides) * grid.turns.count <= MOST_ROUTES, "with so many devices, its routes take too long")
    return [Course(tuple(Leg(axis, "halving", "direct") for axis in _inner_first(grid)), slices)]


def _rings(grid: Grid, slices: int) -> list[Course]:
    """Halving inside machines, a ring between them on every rail; on a torus rings along all axes, both ways."""
    sides = grid.turns.sides
    need(grid.torus or grid.turns.count * max(sides) <= MOST_ROUTES, "with so many devices, it takes too many steps")
    need(grid.torus or max(sides) <= LONGEST_RING, f"rings of more than {LONGEST_RING} take too many steps")
    if not grid.torus:
        inside = len(sides) - 1
        need(inside > 0, "there is one axis only: that is a ring, or halving-doubling")
        legs = [Leg(inside, "halving", "halving")]
        return [Course((*legs, *(Leg(axis, "ring", "ring") for axis in range(inside - 1, -1, -1))), slices)]
    axes = list(range(len(sides)))
    turned = [axes[at:] + axes[:at] for at in axes]
    return [
        Course(tuple(Leg(axis, kind, kind) for axis in order), slices) for kind in ("ring", "back") for order in turned
    ]


COMPOSED: dict[str, Callable[[Grid, int], list[Course]]] = {
    "hierarchical-halving": _halving,
    "hierarchical-direct": _direct,
    "hierarchical-rings": _rings,
}
