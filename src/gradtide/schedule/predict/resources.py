"""What ops compete for: links and shared wires, numbered."""

from math import fsum

from gradtide.errors import ScheduleError
from gradtide.schedule.predict.sharing import Path, Sharing
from gradtide.topology.model import Link, Topology
from gradtide.topology.routes import Route, Routes

__all__ = ["Resources"]


class Resources:
    """Every link of a topology, and every wire that several links share, as numbered capacities in bytes/s."""

    def __init__(self, topology: Topology, routes: Routes | None = None) -> None:
        self._routes = routes or Routes(topology)
        self._number = {link: at for at, link in enumerate(topology.links)}
        self.links = len(topology.links)  # the first of its numbers are theirs
        self.names = [f"{link.source}->{link.target}" for link in topology.links]
        self.capacity = [link.bytes_per_s * link.count for link in topology.links]
        self._wire: dict[str, int] = {}
        for link in topology.links:
            self._add_wire(link)
        self._paths: dict[tuple[str, str], Path | None] = {}
        self._sharing: dict[tuple[tuple[str, str], ...], Sharing] = {}

    def _add_wire(self, link: Link) -> None:
        """A wire is as wide as the widest link that names it."""
        if not link.wire:
            return
        if link.wire not in self._wire:
            self._wire[link.wire] = len(self.capacity)
            self.capacity.append(0.0)
            self.names.append(link.wire)
        number = self._wire[link.wire]
        self.capacity[number] = max(self.capacity[number], link.bytes_per_s * link.count)

    def path(self, source: str, target: str) -> Path | None:
        """The way from source to target, or None where there is none."""
        key = (source, target)
        if key not in self._paths:
            route = self._routes.find(source, target)
            self._paths[key] = self._measure(route) if route is not None else None
        return self._paths[key]

    def required(self, source: str, target: str) -> Path:
        path = self.path(source, target)
        if path is None:
            raise ScheduleError(f"no link leads from {source} to {target} without passing through a device")
        return path

    def sharing(self, pairs: tuple[tuple[str, str], ...]) -> Sharing:
        """How flows between these pairs share. What it found for one run serves the next with the same pairs."""
        if pairs not in self._sharing:
            self._sharing[pairs] = Sharing([self.required(*pair) for pair in pairs], self.capacity)
        return self._sharing[pairs]

    def _measure(self, route: Route) -> Path:
        links = tuple(self._number[link] for link in route)
        used = [*links, *(self._wire[link.wire] for link in route if link.wire)]
        # A wire that a route takes twice carries its bytes twice.
        narrowest = min(self.capacity[number] / used.count(number) for number in used)
        return Path(tuple(used), fsum([link.latency_s for link in route]), narrowest, links)
