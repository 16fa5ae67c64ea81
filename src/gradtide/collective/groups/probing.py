"""Measures the links between the ranks of a running group, with the messages that its schedules would send."""

import time
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from gradtide.topology.model import Link, Topology
from gradtide.topology.probe.fit import Fit, Sample, build_topology, fit_link
from gradtide.topology.validate import check

if TYPE_CHECKING:
    from gradtide.collective.groups.group import Group

__all__ = ["probe_links"]

SIZES = (64, 4_096, 262_144, 1_048_576, 4_194_304)
_LEAST, _MOST = 3, 40


def probe_links(group: "Group", budget_s: float) -> Topology:
    """One pair after the other, each way; the source's fits go to everybody.

    Inside a host every pair is measured. Between two hosts the leaders' link stands for all, and all links from one
    host to another share one wire: two ranks that send at once get half each.
    """
    machines = {node.name: node.machine for node in group.topology.nodes}
    pairs = [pair for pair in permutations(range(group.size), 2) if _measured(pair, list(machines.values()))]
    fits: dict[tuple[str, str], Fit] = {}
    for source, target in pairs:
        row = torch.zeros(3, dtype=torch.float64)
        if group.rank in (source, target):
            samples = _measure(group, source, target, budget_s / len(pairs))
            if group.rank == source:
                hosts = {machines[f"rank{rank}"] for rank in (source, target)}
                fit = fit_link(samples, lets_bursts_pass=len(hosts) > 1)
                row = torch.tensor([fit.latency_s, fit.bytes_per_s, fit.worst_ratio], dtype=torch.float64)
        group.broadcast(row, source)
        latency_s, bytes_per_s, worst = row.tolist()
        fits[f"rank{source}", f"rank{target}"] = Fit(latency_s, bytes_per_s, worst)
    for link in permutations(machines, 2):
        if link not in fits:
            fits[link] = fits[_leader(link[0], machines), _leader(link[1], machines)]
    measured = build_topology("probed", machines, fits)
    return check(replace(measured, links=tuple(_on_wire(link, machines) for link in measured.links)))


def _measured(pair: tuple[int, int], machines: list[str]) -> bool:
    source, target = (machines[rank] for rank in pair)
    return source == target or pair == (machines.index(source), machines.index(target))


def _leader(name: str, machines: dict[str, str]) -> str:
    return next(other for other, machine in machines.items() if machine == machines[name])


def _on_wire(link: Link, machines: dict[str, str]) -> Link:
    source, target = machines[link.source], machines[link.target]
    return link if source == target else replace(link, wire=f"{source} to {target}")


def _measure(group: "Group", source: int, target: int, budget_s: float) -> list[Sample]:
    """A transfer is timed until its one-byte answer is back; half of a one-byte ping is the answer's share.

    The shortest of several counts: whatever else the machine does only makes them longer, and small ones most of all;
    by medians, a link of 20 MB/s had 17 to 26 on a busy machine.
    """
    answer_s = _shortest(group, source, target, 1, 15) / 2
    samples = []
    for size in SIZES:
        once_s = torch.tensor([_shortest(group, source, target, size, 1)], dtype=torch.float64)
        if group.rank == source:
            group.send(once_s, target)
        else:
            group.recv(once_s, source)
        times = int(min(_MOST, max(_LEAST, budget_s / len(SIZES) / max(once_s.item(), 1e-6))))
        taken_s = _shortest(group, source, target, size, times)
        samples.append(Sample(size, max(taken_s - answer_s, taken_s / 2)))
    return samples


def _shortest(group: "Group", source: int, target: int, size: int, times: int) -> float:
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
    return min(taken)
