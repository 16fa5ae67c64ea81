"""Who of the asked devices reaches whom, how fast and how far: what builders choose orders and trees by."""

from dataclasses import dataclass

from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.sharing import Path
from gradtide.schedule.request import NotApplicable, Request
from gradtide.topology.model import NodeKind

__all__ = ["Wiring", "hosts_of", "machines_of", "need", "slices_for", "wiring_of"]

MAX_SLICES = 64  # beyond that, filling a pipeline costs 2 % at most, and ops cost time to plan and run


@dataclass(frozen=True, eq=False)
class Wiring:
    """The paths between ranks: paths[a][b] is None where no route leads from a to b."""

    paths: tuple[tuple[Path | None, ...], ...]
    capacity: tuple[float, ...]

    def reaches(self, a: int, b: int) -> bool:
        return self.paths[a][b] is not None

    def both(self, a: int, b: int) -> bool:
        return self.reaches(a, b) and self.reaches(b, a)

    def path(self, a: int, b: int) -> Path:
        path = self.paths[a][b]
        assert path is not None
        return path


def wiring_of(request: Request, helpers: tuple[str, ...] = ()) -> Wiring:
    resources = Resources(request.topology, request.routes)
    names = (*request.devices, *helpers)
    paths = tuple(tuple(resources.path(a, b) if a != b else None for b in names) for a in names)
    return Wiring(paths, tuple(resources.capacity))


def hosts_of(request: Request) -> list[str]:
    """The hosts that every asked device reaches and is reached by, in the topology's order."""
    hosts = [node.name for node in request.topology.nodes if node.kind is NodeKind.HOST]
    find = request.routes.find
    return [h for h in hosts if all(find(d, h) is not None and find(h, d) is not None for d in request.devices)]


def machines_of(request: Request) -> list[list[int]]:
    """The ranks of each machine, in order of appearance."""
    machine = {node.name: node.machine for node in request.topology.nodes}
    groups: dict[str, list[int]] = {}
    for rank, device in enumerate(request.devices):
        groups.setdefault(machine[device], []).append(rank)
    return list(groups.values())


def slices_for(request: Request, bytes_per_s: float, latency_s: float) -> int:
    """How many slices to pipeline: as soon as a slice moves faster than its latency, finer ones gain nothing."""
    if latency_s <= 0:
        return MAX_SLICES
    return max(1, min(MAX_SLICES, round(request.size_bytes / (bytes_per_s * latency_s))))


def need(condition: bool, reason: str) -> None:
    """Raises NotApplicable with the reason unless the condition holds."""
    if not condition:
        raise NotApplicable(reason)
