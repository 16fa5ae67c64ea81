"""Links by measurement: time some transfers, fit a latency and a bandwidth to each link, build a topology.

The three steps know nothing of each other. A transfer is any function that sends so many bytes so often and says how
long each took; machine.py has one between fresh processes, and a running job can hand in its own.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradtide.errors import TopologyError
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.validate import check

__all__ = ["SIZES", "Fit", "Sample", "Transfer", "build_topology", "fit_link", "measure_link"]

Transfer = Callable[[int, int], Sequence[float]]  # (size_bytes, times) -> seconds one way, each time

SIZES = (64, 4_096, 65_536, 524_288, 2_097_152, 8_388_608)
LEAST, MOST = 3, 60  # transfers of one size


@dataclass(frozen=True, slots=True)
class Sample:
    """How long a transfer of this size takes: the median of several."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """seconds = latency_s + size_bytes / bytes_per_s, as near as it gets."""

    latency_s: float
    bytes_per_s: float
    worst_ratio: float  # of a measured time to the fitted one, or the other way round; 1 is perfect


def measure_link(transfer: Transfer, sizes: Sequence[int] = SIZES, budget_s: float = 0.3) -> list[Sample]:
    """The median of as many transfers of each size as the budget allows, three at least; the first ones warm up."""
    samples = []
    for size in sizes:
        start = time.perf_counter()
        transfer(size, 1)
        once_s = max(time.perf_counter() - start, 1e-6)
        times = int(min(MOST, max(LEAST, budget_s / len(sizes) / once_s)))
        samples.append(Sample(size, statistics.median(transfer(size, times))))
    return samples


def fit_link(samples: Sequence[Sample], *, lets_bursts_pass: bool = False) -> Fit:
    """Least squares of the relative error, so that microseconds count as much as milliseconds.

    A wire that lets bursts pass (the token bucket of a cloud's network, or of tc) has no one line: a quarter of a
    megabyte may pass at once, and what follows only at its rate. There the two largest sizes say how fast it is, and
    the smallest how late.
    """
    if len({sample.size_bytes for sample in samples}) < 2:
        raise TopologyError("a latency and a bandwidth need transfers of at least two sizes")
    if any(sample.seconds <= 0 or sample.size_bytes <= 0 for sample in samples):
        raise TopologyError("a transfer of no bytes or in no time can't be fitted; measure larger sizes")
    sizes = np.array([sample.size_bytes for sample in samples], dtype=np.float64)
    seconds = np.array([sample.seconds for sample in samples], dtype=np.float64)
    rows = np.column_stack([1 / seconds, sizes / seconds])
    latency_s, per_byte = (float(value) for value in np.linalg.lstsq(rows, np.ones(len(samples)), rcond=None)[0])
    if latency_s < 0:  # no wire answers before it is asked: the best line through zero instead
        latency_s, per_byte = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if per_byte <= 0:  # all sizes took the same: the largest says at least how fast the wire is
        latency_s, per_byte = float(seconds.min()) / 2, float((seconds / sizes)[sizes.argmax()])
    if lets_bursts_pass and len(samples) > 2:
        smallest, *_, large, largest = sizes.argsort()
        steady = float((seconds[largest] - seconds[large]) / (sizes[largest] - sizes[large]))
        if steady > per_byte:
            latency_s, per_byte = float(seconds[smallest]), steady
    ratio = (latency_s + per_byte * sizes) / seconds
    return Fit(latency_s, 1 / per_byte, float(np.maximum(ratio, 1 / ratio).max()))


def build_topology(name: str, machines: Mapping[str, str], fits: Mapping[tuple[str, str], Fit]) -> Topology:
    """Devices (each with its machine) and a one-way link for each pair that was fitted, to three digits."""
    nodes = tuple(Node(device, NodeKind.DEVICE, machine) for device, machine in machines.items())
    links = tuple(
        Link(source, target, float(f"{fit.bytes_per_s:.3g}"), float(f"{fit.latency_s:.3g}"))
        for (source, target), fit in fits.items()
    )
    return check(Topology(name, nodes, links))
