"""plan: every strategy built, proven, predicted and compared with the lower bound; the fastest one first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from gradtide.errors import ConfigError, DeviceError, ScheduleError
from gradtide.schedule import strategies
from gradtide.schedule.bound import bound
from gradtide.schedule.explain import explain
from gradtide.schedule.model import Collective, Schedule
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.resources import Resources
from gradtide.schedule.simulate import Simulation, simulate
from gradtide.schedule.verify import Proof, verify
from gradtide.topology.files import topology_named
from gradtide.topology.model import NodeKind, Topology

__all__ = ["Candidate", "Plan", "plan", "request_for", "seconds_of_each"]

assert strategies.__all__  # importing them has registered them


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
    schedule: Schedule = field(repr=False)
    simulation: Simulation = field(repr=False)
    proof: Proof = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner found: `table` has the fastest strategy first."""

    request: Request = field(repr=False)
    bound_seconds: float  # no schedule's bytes can move in less
    table: tuple[Candidate, ...]
    skipped: dict[str, str]  # strategies that don't apply here, and why

    @property
    def best(self) -> Candidate:
        return self.table[0]

    def explain(self) -> str:
        """Why the best is the best, in one sentence, and where the next one loses."""
        return explain(self.table, self.bound_seconds)


def plan(
    topology: Topology | str | Path,
    size_bytes: int,
    collective: Collective = "all_reduce",
    devices: Sequence[str] | None = None,
    *,
    root: str | None = None,
    rivals: Sequence[Schedule] = (),
) -> Plan:
    """Finds the fastest way to synchronise so many bytes between devices of a topology.

    `topology` may be a preset's name or a file; `devices` are all of its devices unless named; `root` is the device
    that broadcast starts from and reduce ends at, the first unless named; `rivals` are schedules of one's own, to be
    proven, predicted and compared too.

    >>> plan("pcie-4gpu", 160_000_000).best.bandwidth_seconds <= 0.015
    True
    """
    request = request_for(topology, size_bytes, collective, devices, root)
    lower = bound(request).seconds
    resources = Resources(request.topology, request.routes)
    schedules, skipped = _build_all(request)
    for rival in rivals:
        _check_fits(rival, request)
    table = []
    measured: dict[tuple[object, ...], _Measured] = {}  # `rings` is `ring` where there is only one: no need to redo it
    for schedule in (*schedules, *rivals):
        key = (schedule.ranks, schedule.weights, schedule.ops)
        measured[key] = measured.get(key) or _measure(request, resources, schedule)
        table.append(_candidate(schedule, measured[key], lower))
    if not table:
        raise ScheduleError(f"no strategy applies: {'; '.join(f'{name}: {why}' for name, why in skipped.items())}")
    # Rounding must not decide: what is equally fast stands in the order of simplicity.
    table.sort(key=lambda row: (float(f"{row.seconds:.9g}"), row.steps, len(row.schedule.ops), row.name))
    return Plan(request, lower, tuple(table), skipped)


def request_for(
    topology: Topology | str | Path,
    size_bytes: int,
    collective: Collective = "all_reduce",
    devices: Sequence[str] | None = None,
    root: str | None = None,
) -> Request:
    """The request that these arguments make, or an error that says which of them makes no sense."""
    wired = topology if isinstance(topology, Topology) else topology_named(str(topology))
    if size_bytes < 1:
        raise ConfigError(f"the size must be at least one byte, not {size_bytes}")
    if collective not in get_args(Collective):
        raise ConfigError(f"no collective is called {collective!r}; known are {', '.join(get_args(Collective))}")
    chosen = _devices(wired, devices)
    if root is not None and collective not in ("broadcast", "reduce"):
        raise ConfigError(f"{collective} has no root; leave it out, or ask for broadcast or reduce")
    if root is not None and root not in chosen:
        raise DeviceError(f"the root {root!r} is not among the devices {', '.join(chosen)}")
    return Request(wired, chosen, size_bytes, collective, chosen.index(root) if root else 0)


def _devices(topology: Topology, asked: Sequence[str] | None) -> tuple[str, ...]:
    known = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    chosen = tuple(known if asked is None else asked)
    for name in chosen:
        if name not in known:
            raise DeviceError(f"{topology.name} has no device {name!r}; its devices are {', '.join(known[:20])}")
    if len(set(chosen)) < max(2, len(chosen)):
        raise DeviceError(f"a collective needs two or more different devices, not {', '.join(chosen) or 'none'}")
    return chosen


def _build_all(request: Request) -> tuple[list[Schedule], dict[str, str]]:
    """What every strategy builds, and for those that don't apply the reason."""
    schedules, skipped = [], {}
    for name, build in STRATEGIES.items():
        try:
            schedules.append(build(request))
        except NotApplicable as why:
            skipped[name] = str(why)
    return schedules, skipped


def _check_fits(schedule: Schedule, request: Request) -> None:
    """Whether a schedule that came from elsewhere serves this request, on nodes of this topology."""
    name = schedule.name
    if schedule.collective != request.collective:
        raise ScheduleError(f"{name}: is a schedule of {schedule.collective}, but {request.collective} is asked for")
    if set(schedule.ranks[: schedule.contributors]) != set(request.devices):
        raise ScheduleError(f"{name}: must have the devices {', '.join(request.devices)} as its first ranks")
    able = {node.name for node in request.topology.nodes if node.kind in (NodeKind.DEVICE, NodeKind.HOST)}
    for rank in schedule.ranks:
        if rank not in able:
            raise ScheduleError(f"{name}: {rank!r} is no device or host of {request.topology.name}, so can't add up")


@dataclass(frozen=True, slots=True)
class _Measured:
    run: Simulation
    bare: Simulation
    proof: Proof


def _measure(request: Request, resources: Resources, schedule: Schedule) -> _Measured:
    proof = verify(schedule)
    run = simulate(schedule, request.topology, request.size_bytes, resources=resources)
    bare = simulate(schedule, request.topology, request.size_bytes, resources=resources, latency=False)
    return _Measured(run, bare, proof)


def _candidate(schedule: Schedule, measured: _Measured, lower: float) -> Candidate:
    run = measured.run
    return Candidate(
        name=schedule.name,
        seconds=run.seconds,
        bandwidth_seconds=measured.bare.seconds,
        ratio=run.seconds / lower,
        busiest_link=run.busiest_link,
        busiest_seconds=run.busiest_seconds,
        wire_bytes=round(run.wire_bytes),
        steps=measured.proof.steps,
        schedule=schedule,
        simulation=run,
        proof=measured.proof,
    )


def seconds_of_each(request_of: Callable[[int], Request], sizes: Sequence[int]) -> dict[str, list[float]]:
    """Predicted seconds of every strategy for every size; infinite where it does not apply."""
    seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for size_bytes in sizes:
        request = request_of(size_bytes)
        resources = Resources(request.topology, request.routes)
        for name, build in STRATEGIES.items():
            try:
                run = simulate(build(request), request.topology, size_bytes, resources=resources)
                seconds[name].append(run.seconds)
            except NotApplicable:
                seconds[name].append(float("inf"))
    return {name: times for name, times in seconds.items() if min(times) < float("inf")}
