"""Predicts a generated schedule from its seed: what its ops compete for, folded into classes of links.

All pairs of ranks that are as far apart on the grid are one class, and so are their flows. Links that carry the same of
each class, and are as fast, are one class too. If on every pair's route lie as many links of each class as on any other
pair's of its class, the partition is equitable: max-min fair sharing then gives all flows of a class the same rate, and
by induction over the events of the simulation all turned copies of an op start and end together. So it is enough to
simulate the seed, with every class of links as one link that carries what one of them carries.

Where turning the cluster is an automorphism of its wiring and routes (relabelling.py), the partition is equitable. It
may be without: four GPUs that share two NICs in pairs are not alike when turned by one, but each NIC carries two flows
still.

Where the partition is not equitable (a rack is half full, say), each class of pairs is taken for as slow as the slowest
of its pairs and as far as the farthest. That is an estimate, and no more: ranks then wait for each other in ways that
only a simulation of the whole shows. `exact` says which it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.classes.generated import GeneratedSchedule
from gradtide.schedule.classes.pair_routes import PairRoutes
from gradtide.schedule.classes.relabelling import why_not_alike
from gradtide.schedule.predict.sharing import Path, Sharing
from gradtide.schedule.predict.simulate import Simulation, timed

__all__ = ["Folding", "simulate_folded"]

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]

MOST_LEVELS = 400  # classes of links that are looked at one against the other


@dataclass(frozen=True, eq=False)
class Folding:
    """The paths of each class of pairs over classes of links, each with the share of it that one rank's flows have."""

    distances: tuple[int, ...]
    paths: tuple[Path, ...]
    capacity: tuple[float, ...]
    loads: Floats  # links and wires × distances: how many pairs of that distance use it
    exact: bool
    unlike: str  # in what places that are turned onto each other differ, in words; empty if in nothing

    def required(self, source: str, target: str) -> Path:
        return self.paths[int(target)]

    def sharing(self, pairs: tuple[tuple[str, str], ...]) -> Sharing:
        return Sharing([self.required(*pair) for pair in pairs], self.capacity)


def fold(routes: PairRoutes, distances: Sequence[int]) -> Folding:
    """What the pairs at these distances compete for."""
    loads = np.zeros((len(routes.rates), len(distances)))
    for column, distance in enumerate(distances):
        rows, _ = routes.at(distance)
        loads[:, column] = np.bincount(rows[rows >= 0], minlength=len(loads))
    used = np.flatnonzero(loads.any(axis=1))
    table = np.column_stack([routes.rates[used], loads[used]])
    levels, of_used = np.unique(table, axis=0, return_inverse=True)
    level = np.full(len(loads) + 1, -1)
    level[used] = of_used.ravel()
    exact = all(_alike(level, *routes.at(distance)) for distance in distances)
    unlike = why_not_alike(routes, distances)
    assert exact or unlike, "links that an automorphism takes to each other carry the same"
    capacity, many = levels[:, 0], levels[:, 1:]
    if not exact:
        kept = _that_bind(many / capacity[:, None])
        capacity, many = capacity[kept], many[kept]
    whole = many.astype(np.int64)
    paths = []
    for column, distance in enumerate(distances):
        ways = np.flatnonzero(whole[:, column])
        resources = np.repeat(ways, whole[ways, column]).tolist()
        width = float((capacity[ways] / whole[ways, column]).min())
        paths.append(Path(tuple(resources), float(routes.at(distance)[1].max()), width, ()))
    return Folding(tuple(distances), tuple(paths), tuple(capacity.tolist()), loads, exact, unlike)


def _alike(level: Ints, rows: Ints, latencies: Floats) -> bool:
    """Whether every pair's route has as many links of each class as the first one's, and the same latency."""
    found = np.sort(level[rows], axis=1)
    return bool((found == found[0]).all() and np.ptp(latencies) <= 1e-12 * latencies[0])


def _that_bind(slowness: Floats) -> Ints:
    """Levels that no other is slower than for every distance at once."""
    order = np.argsort(-slowness.sum(axis=1), kind="stable")
    kept: list[int] = []
    for at in order.tolist():
        if len(kept) > MOST_LEVELS or not kept or not (slowness[kept] >= slowness[at]).all(axis=1).any():
            kept.append(at)
    return np.array(sorted(kept), dtype=np.intp)


def simulate_folded(
    schedule: GeneratedSchedule, routes: PairRoutes, size_bytes: int, *, latency: bool = True
) -> tuple[Simulation, bool]:
    """What simulating the whole list gives, with times for the ops of the seed alone, and whether it is exact."""
    seed, turns = schedule.seed, schedule.turns
    apart = turns.subtract(np.array([op.dst for op in seed.ops]), np.array([op.src for op in seed.ops]))
    distances, column = np.unique(apart, return_inverse=True)
    folding = fold(routes, distances.tolist())
    total = turns.count * sum(seed.weights)
    chunk_bytes = [size_bytes * weight / total for weight in seed.weights]
    # The places that ops run between are now: here, and one for each class of pairs.
    ops = tuple(op._replace(src=len(distances), dst=int(at)) for op, at in zip(seed.ops, column, strict=True))
    flat = replace(seed, ranks=(*map(str, range(len(distances))), "here"), ops=ops)
    times = timed(flat, folding, chunk_bytes, latency)
    sent = np.bincount(column, [chunk_bytes[op.chunk] for op in seed.ops], len(distances))
    carried = folding.loads @ sent
    busy = carried / routes.rates
    busiest = int((busy >= busy.max() * (1 - 1e-9)).argmax())
    run = Simulation(
        seconds=float(times.end_s.max(initial=0.0)),
        start_s=times.start_s,
        moving_s=times.moving_s,
        end_s=times.end_s,
        link_bytes=carried[: len(routes.topology.links)],
        busiest_link=routes.names[busiest],
        busiest_seconds=float(busy[busiest]),
        wire_bytes=float(sent.sum()) * turns.count,
    )
    return run, folding.exact
