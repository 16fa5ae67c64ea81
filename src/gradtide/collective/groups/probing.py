"""Measures the links between the ranks of a running group with messages, as its schedules send them, for the planner.
What was found is remembered for these hosts."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from gradtide.topology.model import Link, Topology
from gradtide.topology.probe.fit import Fit, Sample, build_topology, fit_link
from gradtide.topology.validate import check

if TYPE_CHECKING:
    from gradtide.collective.groups.group import Group

__all__ = ["measure_links", "remember"]

T = TypeVar("T")
SIZES = (64, 4_096, 262_144, 1_048_576, 4_194_304)
_LEAST, _MOST = 3, 40
_found: dict[tuple[object, ...], object] = {}  # by what was measured, and the hosts of all ranks


def measure_links(group: "Group", budget_s: float, remembered: bool) -> Topology:
    """As messages find them."""
    return remember(group, "links", remembered, lambda: _probe_links(group, budget_s))


def remember(group: "Group", what: str, remembered: bool, measure: Callable[[], T]) -> T:
    """What this process knows of the hosts of this group, if all ranks do; else it is measured now."""
    key = (what, *group.all_gather(torch.tensor(_this_host())).tolist())
    knows = torch.tensor([int(remembered and key in _found)])
    if not group.all_reduce(knows, "min").item():
        _found[key] = measure()
    return cast("T", _found[key])


def _this_host() -> int:
    """The same in all processes that share a network, and in no others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return int(boot.replace("-", "")[:15], 16) ^ os.stat("/proc/self/ns/net").st_ino


def _probe_links(group: "Group", budget_s: float) -> Topology:
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
    until = time.perf_counter() + budget_s
    answer_s = _shortest(group, source, target, 1, 15) / 2
    samples: list[Sample] = []
    for number, size in enumerate(SIZES):
        expected_s = samples[-1].seconds * size / samples[-1].size_bytes if number > 1 else 2 * answer_s
        share_s = (until - time.perf_counter()) / (len(SIZES) - number)
        times = min(_MOST, max(_LEAST, share_s / expected_s))
        if number > 2 and times * expected_s > until - time.perf_counter():  # a slow wire: as often as there is time
            times = (until - time.perf_counter()) / expected_s
        times = _as_source_says(group, source, target, times)
        if times < 1:
            break
        taken_s = _shortest(group, source, target, size, times)
        samples.append(Sample(size, max(taken_s - answer_s, taken_s / 2)))
    return samples


def _as_source_says(group: "Group", source: int, target: int, number: float) -> int:
    said = torch.tensor([int(number)])
    group.send(said, target) if group.rank == source else group.recv(said, source)
    return int(said.item())


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
