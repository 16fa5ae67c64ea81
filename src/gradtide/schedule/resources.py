"""What ops compete for: links and shared wires, and how a set of flows shares them (max-min fair)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradtide.errors import ScheduleError
from gradtide.topology.model import Link, Topology
from gradtide.topology.routes import Route, Routes

__all__ = ["Path", "Resources", "fair_rates"]

SMALL = 400  # flows; below that, plain Python fills faster than numpy


class Path(NamedTuple):
    """The way from one node to another, in numbers."""

    resources: tuple[int, ...]  # what it uses, the links first
    latency_s: float
    bytes_per_s: float  # when nobody else is there
    links: tuple[int, ...]


class Resources:
    """Every link of a topology, and every wire that several links share, as numbered capacities in bytes/s."""

    def __init__(self, topology: Topology, routes: Routes | None = None) -> None:
        self._routes = routes or Routes(topology)
        self._number = {link: at for at, link in enumerate(topology.links)}
        self.names = [f"{link.source}->{link.target}" for link in topology.links]
        self.capacity = [link.bytes_per_s * link.count for link in topology.links]
        self._wire: dict[str, int] = {}
        for link in topology.links:
            self._add_wire(link)
        self._paths: dict[tuple[str, str], Path | None] = {}

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

    def _measure(self, route: Route) -> Path:
        links = tuple(self._number[link] for link in route)
        used = [*links, *(self._wire[link.wire] for link in route if link.wire)]
        # A wire that a route takes twice carries its bytes twice.
        narrowest = min(self.capacity[number] / used.count(number) for number in used)
        return Path(tuple(used), sum(link.latency_s for link in route), narrowest, links)


def fair_rates(flows: Sequence[tuple[Path, int]], capacity: Sequence[float]) -> list[float]:
    """Bytes/s of each flow; `flows` gives a path and how many equal flows take it. Max-min fair.

    Progressive filling: all rates rise together; when a resource is full, the flows through it stay as they are.
    """
    if len(flows) == 1:
        path, count = flows[0]
        return [path.bytes_per_s / count]
    return _fill_small(flows, capacity) if len(flows) <= SMALL else _fill_large(flows, capacity)


def _fill_small(flows: Sequence[tuple[Path, int]], capacity: Sequence[float]) -> list[float]:
    users: dict[int, list[int]] = {}
    crowd: dict[int, int] = {}
    for at, (path, count) in enumerate(flows):
        for number in path.resources:
            users.setdefault(number, []).append(at)
            crowd[number] = crowd.get(number, 0) + count
    left = {number: capacity[number] for number in crowd}
    share = {number: left[number] / count for number, count in crowd.items()}
    rates = [0.0] * len(flows)
    while share:
        level = min(share.values()) * (1 + 1e-12)
        lighter: set[int] = set()
        for full in [number for number, offered in share.items() if offered <= level]:
            for at in users[full]:
                if rates[at]:
                    continue
                path, count = flows[at]
                rates[at] = level
                lighter.update(path.resources)
                for number in path.resources:
                    left[number] -= level * count
                    crowd[number] -= count
        for number in lighter:
            if crowd[number]:
                share[number] = left[number] / crowd[number]
            else:
                del share[number]
    return rates


def _fill_large(flows: Sequence[tuple[Path, int]], capacity: Sequence[float]) -> list[float]:
    spans = np.array([len(path.resources) for path, _ in flows])
    flow = np.repeat(np.arange(len(flows)), spans)
    used = np.array([number for path, _ in flows for number in path.resources])
    count = np.array([count for _, count in flows], dtype=float)
    left, total = np.array(capacity, dtype=float), len(capacity)
    rates = np.zeros(len(flows))
    while flow.size:
        crowd = np.bincount(used, weights=count[flow], minlength=total)
        share: npt.NDArray[np.float64] = np.divide(left, crowd, out=np.full(total, np.inf), where=crowd > 0)
        level = share.min() * (1 + 1e-12)
        stuck = np.zeros(len(flows), dtype=bool)
        stuck[flow[share[used] <= level]] = True
        rates[stuck] = level
        taken = stuck[flow]
        left -= np.bincount(used[taken], weights=count[flow[taken]] * level, minlength=total)
        flow, used = flow[~taken], used[~taken]
    return [float(rate) for rate in rates]
