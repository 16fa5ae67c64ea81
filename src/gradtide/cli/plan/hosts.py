"""gradtide plan --hosts: the time over the number of hosts, with the lower bound beside it."""

import json
import re
from argparse import Namespace
from typing import Any

from gradtide.cli.table import BOLD, styled, table_lines, tell_written
from gradtide.draw.hosts import draw_hosts
from gradtide.errors import ConfigError
from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.plan import Plan
from gradtide.schedule.plan import plan as find_plan
from gradtide.topology.files import topology_named
from gradtide.topology.model import NodeKind, Topology
from gradtide.topology.what_if import altered

__all__ = ["parse_hosts", "show_hosts"]

MOST_HOSTS = 16_384


def parse_hosts(text: str) -> list[int]:
    """The numbers of 4..128, each double the one before: 4, 8, …, 128."""
    match = re.fullmatch(r"(\d{1,6})\.\.(\d{1,6})", text, re.ASCII)
    if not match:
        raise ConfigError(f"--hosts is a range such as 4..128, not {text}")
    low, high = int(match[1]), int(match[2])
    if not 1 <= low < high <= MOST_HOSTS:
        raise ConfigError(f"--hosts goes from 1 or more up to {MOST_HOSTS:,} at most, the smaller first; not {text}")
    numbers = [low]
    while numbers[-1] * 2 < high:
        numbers.append(numbers[-1] * 2)
    return [*numbers, high]


def show_hosts(asked: Namespace, among: tuple[Any, ...]) -> None:
    """Plans for each number of hosts, prints a row for each, and draws them if a file is named."""
    numbers = parse_hosts(asked.hosts)
    wired = [_sized(asked, hosts) for hosts in numbers]  # what is wrong with one is said before the first is planned
    plans = [find_plan(topology, asked.size, among[0]) for topology in wired]
    title = f"{among[0]} of {short_size(plans[0].request.size_bytes)} on {_without_number(wired[-1].name, numbers[-1])}"
    if asked.output:
        times = [plan.best.seconds for plan in plans]
        names, bounds = [plan.best.name for plan in plans], [plan.bound_seconds for plan in plans]
        draw_hosts(asked.output, numbers, times, bounds, names, title)
    if asked.json:
        print(json.dumps({"hosts": numbers, "plans": [_as_data(plan) for plan in plans]}, indent=2))
    else:
        cells = [_cells(hosts, plan) for hosts, plan in zip(numbers, plans, strict=True)]
        head, *lines = table_lines(("hosts", "devices", "strategy", "time", "lower bound", "× bound"), cells)
        print("\n".join([styled(BOLD, title), styled(BOLD, head), *lines]))
    tell_written(asked.output, as_data=asked.json)


def _sized(asked: Namespace, hosts: int) -> Topology:
    return altered(topology_named(asked.topology, host_kind=asked.host_kind, hosts=hosts), asked.without, asked.degrade)


def _without_number(name: str, hosts: int) -> str:
    """superpod:128 as superpod:HOSTS; a file's name as it is."""
    return re.sub(rf":{hosts}(?!\d)", ":HOSTS", name, count=1)


def _cells(hosts: int, plan: Plan) -> tuple[str, ...]:
    best, bound = plan.best, short_seconds(plan.bound_seconds)
    return str(hosts), _devices(plan), best.name, short_seconds(best.seconds), bound, f"{best.ratio:.3f}"


def _devices(plan: Plan) -> str:
    return str(sum(node.kind is NodeKind.DEVICE for node in plan.request.topology.nodes))


def _as_data(plan: Plan) -> dict[str, Any]:
    best = plan.best
    data = {"topology": plan.request.topology.name, "devices": int(_devices(plan)), "strategy": best.name}
    return data | {"seconds": best.seconds, "bound_seconds": plan.bound_seconds, "ratio": best.ratio}
