"""Ranks on several hosts: each host's wire into the network is one NIC, which all of its ranks share."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.probe.fit import Fit
from gradtide.topology.validate import check

__all__ = ["HostRates", "build_network"]

Pairs = Mapping[tuple[str, str], Fit]  # by two ranks, or by two hosts

NETWORK = "network"
CLEARLY = 1.25  # measured rates that differ by less are the same wire's
INSIDE = 0.9  # a machine's memory is no later than the network: measured so, it was busy, and routes would leave it
ALIKE = 1.15  # hosts whose rates are this near to the median are taken for alike


@dataclass(frozen=True, slots=True)
class HostRates:
    """Bytes/s out of a host and into it, while every host sends to every other."""

    out: float
    into: float


def build_network(
    machines: Mapping[str, str], inside: Pairs, between: Pairs, together: Mapping[str, HostRates]
) -> Topology:
    """Devices (each with its machine), a link for each pair inside a machine, and a NIC a machine.

    A NIC moves what it moved while all hosts were sending, or what one pair alone moved over it, if that is clearly
    more: then another host was what all waited for. Where every pair alone has what the NICs at its ends have, they
    are joined by one switch; else (and between two hosts) each two NICs by a link of their own.
    """
    hosts = tuple(dict.fromkeys(machines.values()))
    out = _alike({host: _own(together[host].out, between, host, 0) for host in hosts})
    into = _alike({host: _own(together[host].into, between, host, 1) for host in hosts})
    late = _alike({f"{a} {b}": between[a, b].latency_s for a, b in permutations(hosts, 2)})
    switched = len(hosts) > 2 and all(
        between[a, b].bytes_per_s * CLEARLY > min(out[a], into[b]) for a, b in permutations(hosts, 2)
    )
    latency_s = statistics.median(late.values())
    links = [_link(*pair, fit.bytes_per_s, min(fit.latency_s, INSIDE * latency_s)) for pair, fit in inside.items()]
    links += _legs(machines, out, into, latency_s / 2, shared=not switched)
    if switched:
        links += [link for host in hosts for link in _to_switch(host, out[host], into[host])]
    else:
        for a, b in permutations(hosts, 2):
            rate = min(between[a, b].bytes_per_s, out[a], into[b])
            links.append(_link(f"{a}.nic", f"{b}.nic", rate, max(0.0, late[f"{a} {b}"] - latency_s)))
    nodes = [Node(name, NodeKind.DEVICE, machine) for name, machine in machines.items()]
    nodes += [Node(f"{host}.nic", NodeKind.NIC, host) for host in hosts]
    nodes += [Node(NETWORK, NodeKind.SWITCH)] if switched else []
    return check(Topology("probed", tuple(nodes), tuple(links)))


def _own(together: float, between: Pairs, host: str, end: int) -> float:
    alone = max(fit.bytes_per_s for pair, fit in between.items() if pair[end] == host)
    return alone if alone > CLEARLY * together else together


def _alike(rates: dict[str, float]) -> dict[str, float]:
    """Noise does not make two machines different."""
    median = statistics.median(rates.values())
    if all(rate < ALIKE * median and median < ALIKE * rate for rate in rates.values()):
        return dict.fromkeys(rates, median)
    return rates


def _legs(
    machines: Mapping[str, str], out: Mapping[str, float], into: Mapping[str, float], late_s: float, *, shared: bool
) -> Iterator[Link]:
    """Between a rank and its host's NIC. They have all of the latency, so that routes inside a host don't lead over the
    NIC. shared: all ranks' legs are the NIC's one wire, each way."""
    for rank, host in machines.items():
        yield _link(rank, f"{host}.nic", out[host], late_s, f"out of {host}" if shared else "")
        yield _link(f"{host}.nic", rank, into[host], late_s, f"into {host}" if shared else "")


def _to_switch(host: str, out: float, into: float) -> tuple[Link, Link]:
    return _link(f"{host}.nic", NETWORK, out, 0.0), _link(NETWORK, f"{host}.nic", into, 0.0)


def _link(source: str, target: str, bytes_per_s: float, latency_s: float, wire: str = "") -> Link:
    """To three digits."""
    return Link(source, target, float(f"{bytes_per_s:.3g}"), float(f"{latency_s:.3g}"), wire=wire)
