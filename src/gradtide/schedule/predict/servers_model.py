"""Parameter servers in clusters too large to simulate op by op: 10,000 workers in well under a second.

Every worker talks to every server in the same way, so the m x n flows fall into one group a worker speed, and only
groups need rates. The answer is that of simulate.py, as far as that can go: one worker a machine, pushes that arrive
in any order, then pulls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.errors import ConfigError

__all__ = ["ServerCluster", "ServerTimes", "push_pull_seconds"]


@dataclass(frozen=True, slots=True)
class ServerCluster:
    """m workers and n servers on a network that is as wide as all their ports together."""

    worker_bytes_per_s: Sequence[float]  # one port a worker, each way; its length is m
    servers: int
    server_bytes_per_s: float
    latency_s: float = 0.0
    co_located: bool = False  # each server shares the port of a worker, as evenly spread as m allows


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What one synchronisation takes: everybody pushes, and when all is added up, everybody pulls."""

    push_seconds: float
    pull_seconds: float
    bottleneck: str  # "workers" or "servers": whose ports are full

    @property
    def seconds(self) -> float:
        return self.push_seconds + self.pull_seconds


def push_pull_seconds(cluster: ServerCluster, size_bytes: int) -> ServerTimes:
    """Predicted seconds for a model of that size, spread evenly over the servers."""
    speeds = np.asarray(cluster.worker_bytes_per_s, dtype=float)
    _check(cluster, speeds)
    away = _bytes_away(cluster, size_bytes, len(speeds))
    # The two directions of a port carry the same bytes, pushes one way and pulls the other, so they take as long.
    seconds, bottleneck = _drain(speeds, away, cluster.servers * cluster.server_bytes_per_s)
    return ServerTimes(seconds + cluster.latency_s, seconds + cluster.latency_s, bottleneck)


def _check(cluster: ServerCluster, speeds: npt.NDArray[np.float64]) -> None:
    if not speeds.size or speeds.min() <= 0 or cluster.servers < 1 or cluster.server_bytes_per_s <= 0:
        raise ConfigError("a server cluster needs workers and servers, all with a bandwidth above zero")
    if cluster.co_located and cluster.servers > speeds.size:
        raise ConfigError(f"{cluster.servers} servers can't share the ports of {speeds.size} workers; give fewer")


def _bytes_away(cluster: ServerCluster, size_bytes: int, workers: int) -> npt.NDArray[np.float64]:
    """What each worker sends over its port: all of it, but not the share of a server in its own machine."""
    away = np.full(workers, float(size_bytes))
    if cluster.co_located:
        away[np.linspace(0, workers, cluster.servers, endpoint=False).astype(int)] -= size_bytes / cluster.servers
    return away


def _drain(speeds: npt.NDArray[np.float64], amounts: npt.NDArray[np.float64], capacity: float) -> tuple[float, str]:
    """Seconds until everybody has sent its amount through the servers' ports, shared max-min fair; who held it up."""
    order = np.argsort(speeds)
    speeds, left = speeds[order], amounts[order]
    now, held_up_by, little = 0.0, "workers", 1e-9 * amounts.max()
    while left.size:
        rates = _water_level(speeds, capacity)
        if now == 0.0 and rates.sum() >= capacity * (1 - 1e-9):
            held_up_by = "servers"
        step = float((left / rates).min())
        now, left = now + step, left - rates * step
        speeds, left = speeds[left > little], left[left > little]
    return now, held_up_by


def _water_level(speeds: npt.NDArray[np.float64], capacity: float) -> npt.NDArray[np.float64]:
    """Each gets its own speed or the common level, whichever is less, so that the sum fits; speeds rise."""
    if speeds.sum() <= capacity:
        return speeds
    below = np.concatenate([[0.0], np.cumsum(speeds)[:-1]])
    levels = (capacity - below) / np.arange(len(speeds), 0, -1)
    first = int(np.argmax(levels <= speeds))  # who is slower keeps its speed; from here on, all get the level
    rates: npt.NDArray[np.float64] = np.minimum(speeds, levels[first])
    return rates
