"""balanced-rails: all NICs end together, although one is slow or dead, or machines are of two generations.

Inside each machine a chunk is gathered at the device whose NIC it takes, goes along a tree between machines, and all
the way back. Trees and their parts are those of build/rails.py; which of them run side by side (build/rail_streams.py)
and how finely they are cut, a simulation of each decides: of a few chunks first, and of many if these promise more.
"""

from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from typing import NamedTuple

from gradtide.schedule.build.exits import MachineExits, exits_of
from gradtide.schedule.build.rail_streams import StreamChoice, choices_of, sliced
from gradtide.schedule.build.wiring import need
from gradtide.schedule.classes.sliced import SlicedSchedule
from gradtide.schedule.model import Schedule
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.simulate import Simulation, simulate_arrays
from gradtide.schedule.request import Request, strategy

__all__ = ["SlicedRun", "balanced", "sliced_run"]

STAGES = ((40_000, 4), (120_000, 1), (600_000, 0))  # ops, and how many choices go on besides the soonest one
AT_ONCE = 2  # simulations
NEAR = 1.05  # times the best promise, to go on
AS_SOON = 1.001  # times the soonest: finer chunks are not worth their ops
LEAST_CHUNK_BYTES = 65_536  # of slices; finer ones are all latency
LEAST_BYTES = 4  # no element is cut
SAME = 1e-6


class SlicedRun(NamedTuple):
    """A schedule of slices and its prediction."""

    schedule: SlicedSchedule
    run: Simulation


@strategy("balanced-rails")
def balanced_rails(request: Request) -> Schedule:
    return balanced(request, Resources(request.topology, request.routes)).schedule.listed()


def balanced(request: Request, resources: Resources, stages: int = len(STAGES)) -> SlicedRun:
    """The soonest of all choices, cut as finely as pays; with fewer stages not quite, in a fraction of the time."""
    need(request.collective == "all_reduce", "only a sum that all need is shared out between NICs")
    machines = exits_of(request)
    need(_differ(machines), "all NICs are equally fast, so there is nothing to balance")
    choices = choices_of(request, machines)
    need(bool(choices), "no rail leads to every machine")
    fewest = min(choice.trees for choice in choices)
    need(request.size_bytes >= LEAST_BYTES * fewest, f"{request.size_bytes} bytes don't cut into {fewest} parts")
    left = [choice for choice in choices if request.size_bytes >= LEAST_BYTES * choice.trees]
    found: list[SlicedRun] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:  # the compiled simulation lets others run
        for ops, kept in STAGES[:stages]:
            tried = list(threads.map(lambda choice, ops=ops: _cut(request, machines, resources, choice, ops), left))
            found += tried
            left = [left[at] for at in _worth_more(tried, kept)]
    soonest = min(each.run.seconds for each in found)
    return next(each for each in found if each.run.seconds <= AS_SOON * soonest)  # coarse ones come first


def _worth_more(tried: list[SlicedRun], kept: int) -> list[int]:
    """The soonest one, and those that promise the most."""
    promises = [_promised(each) for each in tried]
    soonest = min(range(len(tried)), key=lambda at: tried[at].run.seconds)
    near = [at for at, promise in enumerate(promises) if at != soonest and promise <= NEAR * min(promises)]
    return [soonest, *sorted(near, key=promises.__getitem__)[:kept]]


def _promised(tried: SlicedRun) -> float:
    """About what most ops would take. To fill and to drain takes the less, the more chunks there are; but chunks of
    different sizes get out of step, so that to cut them twice as finely saves less than half of it."""
    run, most = tried.run, STAGES[-1][0]
    return run.busiest_seconds + sqrt(len(run.end_s) / most) * (run.seconds - run.busiest_seconds)


def _cut(
    request: Request, machines: list[MachineExits], resources: Resources, choice: StreamChoice, ops: int
) -> SlicedRun:
    """In as many chunks as make about so many ops, but none too small, and one of each tree or more."""
    chunks = min(ops // (2 * len(request.devices) - 2), request.size_bytes // LEAST_CHUNK_BYTES)
    schedule = sliced(request, machines, choice, max(choice.trees, chunks))
    find, names = request.routes.find, request.devices
    ways = {(op.src, op.dst) for stream in schedule.streams for op in stream.ops}
    need(all(find(names[a], names[b]) is not None for a, b in ways), "devices of a machine have no route to each other")
    return SlicedRun(schedule, sliced_run(schedule, request, resources))


def sliced_run(schedule: SlicedSchedule, request: Request, resources: Resources, *, latency: bool = True) -> Simulation:
    """The prediction of a schedule of slices."""
    total = sum(schedule.weights)
    chunk_bytes = [request.size_bytes * weight / total for weight in schedule.weights]
    return simulate_arrays(schedule.arrays(), resources, chunk_bytes, latency=latency)


def _differ(machines: list[MachineExits]) -> bool:
    rates = [way.bytes_per_s for machine in machines for way in machine.exits]
    counts = {len(machine.exits) for machine in machines}
    return len(counts) > 1 or max(rates) > (1 + SAME) * min(rates)
