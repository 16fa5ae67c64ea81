"""Every strategy built, proven and predicted: in full where that is quick, else one of each class of what is alike."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradtide.schedule.classes.compose import COMPOSED, compose, tree_run
from gradtide.schedule.classes.folded import simulate_folded
from gradtide.schedule.classes.generated import GeneratedSchedule
from gradtide.schedule.classes.grids import grid_of
from gradtide.schedule.classes.proof import prove
from gradtide.schedule.classes.sliced import SlicedSchedule, prove_slices
from gradtide.schedule.model import Schedule
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.simulate import Simulation, simulate
from gradtide.schedule.request import NotApplicable, Request
from gradtide.schedule.strategies import STRATEGIES
from gradtide.schedule.strategies.balanced_rails import balanced, sliced_run
from gradtide.schedule.verify import Proof, verify

__all__ = ["Candidate", "candidates", "seconds_of"]

# Up to so many devices a strategy's whole list of ops is worth its time: all of them together take a second or two.
MOST_DEVICES = {
    "sharded": 32, "rings": 32, "rings-one-way": 32, "ring-both-ways": 32, "servers": 32, "packed-trees": 48,
    "hierarchical": 64, "double-tree": 64, "tree": 64, "halving-doubling": 64, "ring": 64, "root": 64, "host": 64,
    "balanced-rails": 64,
}  # fmt: skip
NEEDLESS = 32  # devices above which these are left out where compositions apply: they do the same, later
SLICED = "balanced-rails"  # its slices are alike, so one of each stream is proven, and its ops are arrays
TREE, WHOLE_TREE = "hierarchical-tree", 1024  # devices up to which all its flows are simulated
REPLACED = ("hierarchical", "double-tree", "packed-trees")
FEW, CLOSE = 16, 1.03  # devices above which packing trees takes seconds, for what a composition this close has already
CLOSE_BALANCED = 1.2  # the same where NICs differ: of 24 devices or more, packed trees never came closer


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy on this topology: its proven schedule and what it is predicted to take."""

    name: str
    seconds: float
    bandwidth_seconds: float  # the same with all latencies zero
    ratio: float  # seconds over the lower bound
    busiest_link: str
    busiest_seconds: float  # how long its traffic alone keeps that link busy
    wire_bytes: int  # all that is sent, counted once however long its route
    steps: int  # ops on the longest chain of deps
    made: Schedule | GeneratedSchedule | SlicedSchedule = field(repr=False)
    simulation: Simulation = field(repr=False)  # of a generated schedule: of the seed's ops
    proof: Proof = field(repr=False)
    exact: bool = True  # else machines are not quite alike, and its time is an estimate

    @property
    def schedule(self) -> Schedule:
        """The whole list of ops; of a very large one ask `made.ops_of(rank)`, a rank at a time."""
        return self.made if isinstance(self.made, Schedule) else self.made.listed()

    @property
    def op_count(self) -> int:
        return len(self.made.ops) if isinstance(self.made, Schedule) else self.made.op_count


@dataclass(frozen=True, slots=True)
class _Predicted:
    run: Simulation
    bare: Simulation
    proof: Proof
    exact: bool = True


def candidates(
    request: Request, lower: float, rivals: Sequence[Schedule] = ()
) -> tuple[list[Candidate], dict[str, str]]:
    """What every strategy builds, and for those that don't apply the reason."""
    resources = Resources(request.topology, request.routes)
    table: list[Candidate] = []
    skipped: dict[str, str] = {}
    predicted: dict[tuple[object, ...], _Predicted] = {}  # `rings` is `ring` where there is only one: not done twice
    made: list[Schedule] = []
    # Compositions, and then what balances NICs, decide what else is worth its time.
    for name in sorted(STRATEGIES, key=lambda name: (name not in COMPOSED, name != SLICED)):
        try:
            _check_size(request, name)
            if name in COMPOSED:
                table.append(_composed(request, name, lower))
            elif name == SLICED:
                table.append(_balanced(request, resources, lower))
            else:
                _check_worth(request, name, table)
                made.append(_with_routes(resources, STRATEGIES[name](request)))
        except NotApplicable as why:
            skipped[name] = str(why)
    skipped = {name: skipped[name] for name in STRATEGIES if name in skipped}
    for schedule in (*made, *rivals):
        if schedule.name == TREE and len(request.devices) > WHOLE_TREE:
            runs = tree_run(request), tree_run(request, latency=False)
            table.append(_candidate(schedule, _Predicted(*runs, verify(schedule), exact=False), lower))
            continue
        key = (schedule.ranks, schedule.weights, schedule.ops)
        predicted[key] = predicted.get(key) or _predict(request, resources, schedule)
        table.append(_candidate(schedule, predicted[key], lower))
    return table, skipped


def seconds_of(request: Request, resources: Resources, name: str) -> float:
    """Predicted seconds of one strategy; infinite where it does not apply."""
    try:
        _check_size(request, name)
        if name in COMPOSED:
            return compose(request, name).run.seconds
        if name == SLICED:
            return balanced(request, resources, stages=2).run.seconds  # of many sizes each
        if name == TREE and len(request.devices) > WHOLE_TREE:
            return tree_run(request).seconds
        schedule = _with_routes(resources, STRATEGIES[name](request))
        return simulate(schedule, request.topology, request.size_bytes, resources=resources).seconds
    except NotApplicable:
        return float("inf")


def _with_routes(resources: Resources, schedule: Schedule) -> Schedule:
    """The schedule itself, if routes lead between all pairs that it sends between: a dead NIC leaves some without."""
    for src, dst in sorted({(op.src, op.dst) for op in schedule.ops}):
        source, target = schedule.ranks[src], schedule.ranks[dst]
        if resources.path(source, target) is None:
            raise NotApplicable(f"no link leads from {source} to {target} without passing through a device")
    return schedule


def _check_size(request: Request, name: str) -> None:
    most, count = MOST_DEVICES.get(name), len(request.devices)
    if most is not None and count > most:
        raise NotApplicable("with so many devices, to list and simulate all its ops takes too long")
    if name in REPLACED and count > NEEDLESS and request.collective == "all_reduce" and _alike(request):
        raise NotApplicable("with so many devices, in machines of equal size, hierarchical-* takes its place")


def _check_worth(request: Request, name: str, found: Sequence[Candidate]) -> None:
    if name != "packed-trees" or len(request.devices) <= FEW:
        return
    for one in found:
        if one.exact and one.ratio <= (CLOSE_BALANCED if one.name == SLICED else CLOSE):
            above = f"{one.name} is {one.ratio - 1:.1%} above the bound already"
            raise NotApplicable(f"{above}, and packing takes seconds")


def _alike(request: Request) -> bool:
    try:
        grid = grid_of(request)
        grid.routes.at(grid.turns.sides[-1] % grid.turns.count)  # a dead NIC leaves machines alike in numbers alone
        return len(grid.turns.sides) > 1
    except NotApplicable:
        return False


def _predict(request: Request, resources: Resources, schedule: Schedule) -> _Predicted:
    proof = verify(schedule)
    run = simulate(schedule, request.topology, request.size_bytes, resources=resources)
    bare = simulate(schedule, request.topology, request.size_bytes, resources=resources, latency=False)
    return _Predicted(run, bare, proof)


def _composed(request: Request, name: str, lower: float) -> Candidate:
    found = compose(request, name)
    bare, _ = simulate_folded(found.schedule, grid_of(request).routes, request.size_bytes, latency=False)
    predicted = _Predicted(found.run, bare, prove(found.schedule), found.exact)
    return _candidate(found.schedule, predicted, lower)


def _balanced(request: Request, resources: Resources, lower: float) -> Candidate:
    found = balanced(request, resources)
    bare = sliced_run(found.schedule, request, resources, latency=False)
    return _candidate(found.schedule, _Predicted(found.run, bare, prove_slices(found.schedule)), lower)


def _candidate(
    schedule: Schedule | GeneratedSchedule | SlicedSchedule, predicted: _Predicted, lower: float
) -> Candidate:
    run = predicted.run
    return Candidate(
        name=schedule.name,
        seconds=run.seconds,
        bandwidth_seconds=predicted.bare.seconds,
        ratio=run.seconds / lower,
        busiest_link=run.busiest_link,
        busiest_seconds=run.busiest_seconds,
        wire_bytes=round(run.wire_bytes),
        steps=predicted.proof.steps,
        made=schedule,
        simulation=run,
        proof=predicted.proof,
        exact=predicted.exact,
    )
