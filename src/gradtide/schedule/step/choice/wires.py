"""How fast the devices of a step compute, what they can hold, and how they reach each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gradtide.errors import ConfigError, DeviceError
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.step.choice.ways import ShardWire
from gradtide.topology.model import NodeKind, Topology

__all__ = ["PathCost", "StagePlace", "StepDevices"]


@dataclass(frozen=True, slots=True)
class PathCost:
    """The slowest of some paths: infinite seconds a byte where one of them does not exist."""

    s_per_byte: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage would be: the slowest of its devices, and the slowest of the paths that each of its needs takes."""

    copies: int
    shards: int
    speed: float
    memory_bytes: float
    exchange: PathCost  # between any two shards of a copy
    sum: PathCost  # between the copies of a shard, each to the next
    before: PathCost  # from the devices before
    after: PathCost  # to those after


class StepDevices:
    """The devices that a model may be split over, in the order in which stages take them.

    Message paths are those between a stage's devices and as many just before and after them, one to one.
    """

    def __init__(
        self,
        topology: Topology,
        devices: int | Sequence[str] | None = None,
        memory_bytes: float | Sequence[float] = float("inf"),
        speeds: Sequence[float] = (),
    ) -> None:
        self.topology = topology
        self.names = _chosen(topology, devices)
        self.speeds = tuple(float(speed) for speed in speeds) or (1.0,) * len(self.names)
        many = isinstance(memory_bytes, Sequence)
        self.memory_bytes = tuple(map(float, memory_bytes)) if many else (float(memory_bytes),) * len(self.names)  # type: ignore[arg-type]
        for given, what in ((self.speeds, "speeds"), (self.memory_bytes, "memory budgets")):
            if len(given) != len(self.names):
                raise ConfigError(f"{len(given)} {what} for {len(self.names)} devices; give one each")
            if not all(one > 0 for one in given):
                raise ConfigError(f"{what} must be above 0, not {', '.join(f'{one:g}' for one in given)}")
        self.resources = Resources(topology)
        self._places: dict[tuple[int, int, int], StagePlace] = {}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _paths(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Seconds a byte and latency of each pair of devices, the worse of both directions. Where no link joins two,
        other devices pass all of it on, one after the other."""
        cost, late = self._direct
        for via in range(len(self)):
            through = cost[:, via, None] + cost[None, via, :]
            shorter = through < cost
            cost = np.where(shorter, through, cost)
            late = np.where(shorter, late[:, via, None] + late[None, via, :], late)
        return cost, late

    @cached_property
    def _direct(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The same, infinite where no link joins two."""
        count = len(self.names)
        cost, late = np.zeros((count, count)), np.zeros((count, count))
        for a, source in enumerate(self.names):
            for b, target in enumerate(self.names):
                if a != b:
                    path = self.resources.path(source, target)
                    cost[a, b] = 1 / path.bytes_per_s if path else np.inf
                    late[a, b] = path.latency_s if path else 0.0
        return np.maximum(cost, cost.T), np.maximum(late, late.T)

    @cached_property
    def narrowest(self) -> PathCost:
        """The slowest of all paths that exist."""
        cost, late = self._paths
        return PathCost(float(cost[np.isfinite(cost)].max(initial=0.0)), float(late.max(initial=0.0)))

    def shard_wire(self, shards: int) -> ShardWire:
        """What ways are weighed with: the slowest exchange among so many neighbours that is possible anywhere."""
        if shards == 1:
            return ShardWire(float("inf"))
        groups = [self._among(range(at, at + shards)) for at in range(len(self) - shards + 1)]
        worst = max((group for group in groups if group.s_per_byte < np.inf), key=lambda g: g.s_per_byte, default=None)
        worst = worst or self.narrowest
        return ShardWire(1 / worst.s_per_byte if worst.s_per_byte else float("inf"), worst.latency_s)

    def place(self, first: int, copies: int, shards: int) -> StagePlace:
        """Of a stage that takes the devices from `first` on."""
        key = (0 if self._alike else first, copies, shards)
        if key not in self._places:
            self._places[key] = self._place(*key)
        return self._places[key]

    @cached_property
    def _alike(self) -> bool:
        """Whether it does not matter which devices a stage takes."""
        cost, late = self._paths
        pairs = ~np.eye(len(self), dtype=bool)
        alike = np.unique(cost[pairs]).size <= 1 and np.unique(late[pairs]).size <= 1
        return alike and len(set(self.speeds)) == 1 and len(set(self.memory_bytes)) == 1

    def _place(self, first: int, copies: int, shards: int) -> StagePlace:
        count = copies * shards
        here = range(first, first + count)
        groups = [range(first + copy * shards, first + (copy + 1) * shards) for copy in range(copies)]
        sums = [here[shard::shards] for shard in range(shards)]
        before = [(max(0, at - count), at) for at in here] if first else []
        after = [(at, min(len(self) - 1, at + count)) for at in here] if first + count < len(self) else []
        return StagePlace(
            copies,
            shards,
            min(self.speeds[at] for at in here),
            min(self.memory_bytes[at] for at in here),
            _worst([self._among(group) for group in groups]) if shards > 1 else PathCost(),
            _worst([self._around(group) for group in sums]) if copies > 1 else PathCost(),
            self._pairs(before) if before else self.narrowest,
            self._pairs(after) if after else self.narrowest,
        )

    def _pairs(self, pairs: Sequence[tuple[int, int]]) -> PathCost:
        cost, late = self._paths
        at = tuple(np.array(pairs).T)
        return PathCost(float(cost[at].max()), float(late[at].max()))

    def _among(self, group: range) -> PathCost:
        cost, late = self._paths
        at = slice(group.start, group.stop, group.step)
        return PathCost(float(cost[at, at].max()), float(late[at, at].max()))

    def _around(self, group: range) -> PathCost:
        """Of a ring; where two neighbours in it are not wired, of the widest tree that joins them all."""
        members = list(group)
        around = list(zip(members, members[1:] + members[:1], strict=True))
        cost, _ = self._direct
        joined = all(cost[pair] < np.inf for pair in around)
        return self._pairs(around) if joined else self._widest_tree(members)

    def _widest_tree(self, members: list[int]) -> PathCost:
        cost, late = self._paths
        reached, worst, latency = {members[0]}, 0.0, 0.0
        while len(reached) < len(members):
            a, b = min(((a, b) for a in reached for b in members if b not in reached), key=lambda p: cost[p])
            worst, latency = max(worst, float(cost[a, b])), max(latency, float(late[a, b]))
            reached.add(b)
        return PathCost(worst, latency)


def _worst(paths: Sequence[PathCost]) -> PathCost:
    return PathCost(max(path.s_per_byte for path in paths), max(path.latency_s for path in paths))


def _chosen(topology: Topology, devices: int | Sequence[str] | None) -> tuple[str, ...]:
    known = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    if devices is None:
        return tuple(known)
    if isinstance(devices, int):
        if devices < 1:
            raise DeviceError(f"a model is split over one device or more, not {devices}")
        if devices > len(known):
            raise DeviceError(f"{topology.name} has {len(known)} devices, not {devices}; ask for fewer")
        return tuple(known[:devices])
    if not devices or len(set(devices)) < len(devices):
        raise DeviceError(f"a model is split over different devices, not {', '.join(devices) or 'none'}")
    for name in devices:
        if name not in known:
            raise DeviceError(f"{topology.name} has no device {name!r}; its devices are {', '.join(known[:20])}")
    return tuple(devices)
