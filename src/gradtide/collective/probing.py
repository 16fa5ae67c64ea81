"""Measures the links between the ranks of a running group, with the messages that its schedules would send."""

import time
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from gradtide.topology.model import Node, Topology
from gradtide.topology.probe import Fit, Sample, build_topology, fit_link

if TYPE_CHECKING:
    from gradtide.collective.group import Group

__all__ = ["probe_links"]

SIZES = (64, 4_096, 65_536, 524_288, 4_194_304)
_LEAST, _MOST = 3, 40


def probe_links(group: "Group", budget_s: float) -> Topology:
    """One pair after the other, each way; the source's fits go to everybody."""
    pairs = list(permutations(range(group.size), 2))
    fits: dict[tuple[str, str], Fit] = {}
    for source, target in pairs:
        row = torch.zeros(3, dtype=torch.float64)
        if group.rank in (source, target):
            samples = _measure(group, source, target, budget_s / len(pairs))
            if group.rank == source:
                fit = fit_link(samples)
                row = torch.tensor([fit.latency_s, fit.bytes_per_s, fit.worst_ratio], dtype=torch.float64)
        group.broadcast(row, source)
        latency_s, bytes_per_s, worst = row.tolist()
        fits[f"rank{source}", f"rank{target}"] = Fit(latency_s, bytes_per_s, worst)
    nodes: tuple[Node, ...] = group.topology.nodes
    return build_topology("probed", {node.name: node.machine for node in nodes}, fits)


def _measure(group: "Group", source: int, target: int, budget_s: float) -> list[Sample]:
    """A transfer is timed until its one-byte answer is back; half of a one-byte ping is the answer's share."""
    answer_s = _median(group, source, target, 1, 15) / 2
    samples = []
    for size in SIZES:
        once_s = torch.tensor([_median(group, source, target, size, 1)], dtype=torch.float64)
        if group.rank == source:
            group.send(once_s, target)
        else:
            group.recv(once_s, source)
        times = int(min(_MOST, max(_LEAST, budget_s / len(SIZES) / max(once_s.item(), 1e-6))))
        taken_s = _median(group, source, target, size, times)
        samples.append(Sample(size, max(taken_s - answer_s, taken_s / 2)))
    return samples


def _median(group: "Group", source: int, target: int, size: int, times: int) -> float:
    data, answer = torch.zeros(size, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        if group.rank == source:
            group.send(data, target)
            group.recv(answer, target)
        else:
            group.recv(data, source)
            group.send(answer, source)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2]
