"""Measures the links between the ranks of a running group with messages, as its schedules send them, for the planner.
What was found is remembered for these hosts."""

import os
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.probe.fit import Fit, Sample, build_topology, fit_link
from gradtide.topology.probe.network import HostRates, build_network

if TYPE_CHECKING:
    from gradtide.collective.groups.group import Group

__all__ = ["measure_links", "remember"]

T = TypeVar("T")
SIZES = (64, 4_096, 262_144, 1_048_576, 4_194_304)
_LEAST, _MOST, _TURNS = 3, 40, 2
_STEADY_BYTES, _SLOW_S = 1_048_576, 0.3  # no bucket lets so much pass: measured once at least, if it takes less
_TOGETHER = (1_048_576, 4_194_304)  # bytes out of each host while all send to each other
_NEAR, _FAR = 1 / 3, 1 / 3  # of the time: for pairs inside hosts, and between; the rest for all hosts at once
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

    Inside a host every pair is measured. Between two hosts the leaders' link stands for all. All links of a host share
    its wire into the network, whomever they lead to: how much that carries is seen while all hosts send to each other.
    """
    machines = {node.name: node.machine for node in group.topology.nodes if node.kind is NodeKind.DEVICE}
    hosts = list(machines.values())
    leaders = [hosts.index(host) for host in dict.fromkeys(hosts)]
    pairs = [(a, b) for a, b in permutations(range(group.size), 2) if hosts[a] == hosts[b]]
    far = list(permutations(leaders, 2))
    inside = _fits(group, pairs, _NEAR * budget_s if far else budget_s)
    fits = {(f"rank{a}", f"rank{b}"): fit for (a, b), fit in inside.items()}
    if not far:
        return build_topology("probed", machines, fits)
    between = {(hosts[a], hosts[b]): fit for (a, b), fit in _fits(group, far, _FAR * budget_s, far=True).items()}
    slowest = min(fit.bytes_per_s for fit in between.values())
    together = _all_at_once(group, hosts, slowest, (1 - _NEAR - _FAR) * budget_s)
    return build_network(machines, fits, between, together)


def _fits(
    group: "Group", pairs: list[tuple[int, int]], budget_s: float, *, far: bool = False
) -> dict[tuple[int, int], Fit]:
    """Every pair has more than one turn: what else a busy machine does for a while would make one look slow."""
    found: dict[tuple[int, int], dict[int, float]] = {pair: {} for pair in pairs}
    fits = {}
    for turn in range(_TURNS):
        for source, target in pairs:
            row, shortest = torch.zeros(3, dtype=torch.float64), found[source, target]
            if group.rank in (source, target):
                for size, seconds in _measure(group, source, target, budget_s / len(pairs) / _TURNS):
                    shortest[size] = min(seconds, shortest.get(size, seconds))
            if group.rank == source and turn == _TURNS - 1:
                fit = fit_link([Sample(*each) for each in shortest.items()], lets_bursts_pass=far)
                row = torch.tensor([fit.latency_s, fit.bytes_per_s, fit.worst_ratio], dtype=torch.float64)
            group.broadcast(row, source)
            fits[source, target] = Fit(*row.tolist())
    return fits


def _all_at_once(group: "Group", hosts: list[str], bytes_per_s: float, budget_s: float) -> dict[str, HostRates]:
    """What each host's wire carries each way while every host sends to every other, over as many ranks as it has.

    What more bytes take longer is what counts: a token bucket lets the first ones pass. bytes_per_s: as a guess.
    """
    flows = _flows(hosts)
    apart = len(set(hosts)) - 1
    sizes = [size // apart for size in _TOGETHER]
    times = max(2, min(_LEAST + 2, int(budget_s * bytes_per_s / sum(_TOGETHER))))
    small, large = (_arrivals(group, flows, size, often) for size, often in zip(sizes, (2 * times, times), strict=True))
    rates = {}
    for host in dict.fromkeys(hosts):
        seconds = []
        for end in (0, 1):
            mine = [at for at, flow in enumerate(flows) if hosts[flow[end]] == host]
            longer_s = max(large[at] for at in mine) - max(small[at] for at in mine)
            seconds.append(max(longer_s, 1e-9))
        rates[host] = HostRates(*(apart * (sizes[1] - sizes[0]) / longer_s for longer_s in seconds))
    return rates


def _flows(hosts: list[str]) -> list[tuple[int, int]]:
    """A rank of each host to a rank of each other, all ranks in turn."""
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    members = list(ranks.values())
    found = []
    for a, b in permutations(range(len(members)), 2):
        turn = (b - a) % len(members)
        found.append((members[a][turn % len(members[a])], members[b][turn % len(members[b])]))
    return found


def _arrivals(group: "Group", flows: list[tuple[int, int]], size: int, times: int) -> list[float]:
    """Seconds until each flow's bytes have arrived, all at once: the shortest of several."""
    shortest = torch.full((len(flows),), torch.inf, dtype=torch.float64)
    data = torch.zeros(size, dtype=torch.uint8)
    for _ in range(times):
        taken = torch.zeros(len(flows), dtype=torch.float64)
        coming = {
            at: group.recv(torch.empty_like(data), source, tag=at, async_op=True)
            for at, (source, target) in enumerate(flows)
            if target == group.rank
        }
        group.barrier()
        begin = time.perf_counter()
        going = [
            group.send(data, target, tag=at, async_op=True)
            for at, (source, target) in enumerate(flows)
            if source == group.rank
        ]
        for at, handle in coming.items():
            handle.wait()
            taken[at] = time.perf_counter() - begin
        for handle in going:
            handle.wait()
        shortest = torch.minimum(shortest, group.all_reduce(taken))
    found: list[float] = shortest.tolist()
    return found


def _measure(group: "Group", source: int, target: int, budget_s: float) -> list[tuple[int, float]]:
    """Each size and its seconds. A transfer is timed until its one-byte answer is back, less half of a one-byte ping.

    The shortest of several counts: whatever else the machine does only makes them longer, and small ones most of all;
    by medians, a link of 20 MB/s had 17 to 26 on a busy machine.
    """
    until = time.perf_counter() + budget_s
    answer_s = _shortest(group, source, target, 1, 15) / 2
    samples: list[tuple[int, float]] = []
    for number, size in enumerate(SIZES):
        expected_s = samples[-1][1] * size / samples[-1][0] if number > 1 else 2 * answer_s
        left_s = until - time.perf_counter()
        times = min(_MOST, max(_LEAST, left_s / (len(SIZES) - number) / expected_s))
        if number > 1 and times * expected_s > left_s:  # a slow wire: as often as there is time
            needed = size < _STEADY_BYTES or (size == _STEADY_BYTES and expected_s < _SLOW_S)
            times = max(left_s / expected_s, 1 if needed else 0)
        times = _as_source_says(group, source, target, times)
        if times < 1:
            break
        taken_s = _shortest(group, source, target, size, times)
        samples.append((size, max(taken_s - answer_s, taken_s / 2)))
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
