"""Arrows between workers: from where a worker's gradients were ready to where those whom it sends to had all.

What goes to whom is known beforehand (LinksPlanned), and a synchronisation ends nowhere before all have come to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gradtide.events import GradientsReady, GradientsSynchronised, LinksPlanned
from gradtide.observe.trace.pieces import FlowArrow, Tracks
from gradtide.observe.trace.steps import WorkerStep
from gradtide.observe.trace.worker import worker_place

__all__ = ["Meetings"]

_WORKER = "worker "


@dataclass(slots=True)
class _Presence:
    """A worker's, in one synchronisation."""

    ready_s: float
    synchronised_s: float
    targets: dict[int, int]  # bytes, by rank


@dataclass(slots=True)
class Meetings:
    """Of all workers: by step and how many have been in it before, then by rank."""

    _parts: dict[tuple[int, int], dict[int, _Presence]] = field(default_factory=dict)
    _targets: dict[int, dict[int, int]] = field(default_factory=dict)  # by rank: what it sends to whom now

    def note(self, rank: int, step: WorkerStep, align: Callable[[float], float], *, kept: bool) -> None:
        """Every step of a worker, in order; only those that are kept get arrows."""
        ready_s: float | None = None
        met = 0
        for at_s, event in step.events:
            if isinstance(event, LinksPlanned):
                self._targets[rank] = _targets(event)
            elif isinstance(event, GradientsReady):
                ready_s = at_s
            elif isinstance(event, GradientsSynchronised) and event.wire_bytes and ready_s is not None:
                if kept:
                    part = _Presence(align(ready_s), align(at_s), self._targets.get(rank, {}))
                    self._parts.setdefault((step.number, met), {})[rank] = part
                met, ready_s = met + 1, None

    def draw(self, tracks: Tracks) -> None:
        for parts in self._parts.values():
            for rank, part in parts.items():
                for to, size_bytes in part.targets.items():
                    if to in parts:
                        name, end_s = f"{size_bytes:,} bytes", parts[to].synchronised_s
                        tracks.arrow(FlowArrow(name, worker_place(rank), part.ready_s, worker_place(to), end_s))


def _targets(planned: LinksPlanned) -> dict[int, int]:
    return {
        int(str(to).removeprefix(_WORKER)): int(size)
        for source, to, size in planned.loads
        if str(source).startswith(_WORKER) and str(to).startswith(_WORKER)
    }
