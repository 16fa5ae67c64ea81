"""The way of a message between two devices that no link joins: through other devices, which pass all of it on."""

from gradtide.errors import ScheduleError
from gradtide.schedule.predict.resources import Resources
from gradtide.topology.model import NodeKind, Topology

__all__ = ["Relays"]


class Relays:
    """Ways with the fewest devices in between; of these the one whose narrowest hop is the widest."""

    def __init__(self, topology: Topology) -> None:
        self._name = topology.name
        self._devices = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
        self._resources = Resources(topology)
        self._found: dict[tuple[str, str], tuple[str, ...]] = {}

    def way(self, source: str, target: str) -> tuple[str, ...]:
        """All devices on the way, the two ends among them."""
        if (source, target) not in self._found:
            self._found[source, target] = self._search(source, target)
        return self._found[source, target]

    def _search(self, source: str, target: str) -> tuple[str, ...]:
        # Who is reached, at what speed, on which way.
        best: dict[str, tuple[float, tuple[str, ...]]] = {source: (float("inf"), (source,))}
        while target not in best:
            fresh: dict[str, tuple[float, tuple[str, ...]]] = {}
            for at, (speed, way) in best.items():
                for name in self._devices:
                    path = self._resources.path(at, name) if name not in best else None
                    if path is not None:
                        fresh[name] = max(fresh.get(name, (0.0, ())), (min(speed, path.bytes_per_s), (*way, name)))
            if not fresh:
                raise ScheduleError(f"{self._name}: no way leads from {source} to {target}")
            best |= fresh
        return best[target][1]
