"""Where each node of a drawing goes, in inches: a circle, a wheel around a hub, tiers, or a circle and tiers."""

import math
from collections import defaultdict
from dataclasses import dataclass

from gradtide.topology.model import Node, NodeKind, Topology

__all__ = ["Box", "Layout", "lay_out"]

HEIGHT = 0.34  # of a box
GAP = 0.16  # between boxes that stand side by side
TIER = 1.15  # from one tier to the next
LETTER = 0.098  # the width of a letter of 9.5 points; boxes are sized by their text

Graph = dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class Box:
    """A node as drawn: its middle, its size, and its text."""

    x: float
    y: float
    width: float
    text: str
    height: float = HEIGHT


@dataclass(frozen=True, slots=True)
class Layout:
    """A box for each node, and for each machine of several the boxes that it holds."""

    boxes: dict[str, Box]
    machines: dict[str, tuple[str, ...]]


def lay_out(topology: Topology) -> Layout:
    """The same positions for the same topology, always; no two boxes overlap."""
    graph: Graph = {node.name: set() for node in topology.nodes}
    for link in topology.links:
        graph[link.source].add(link.target)
        graph[link.target].add(link.source)
    texts = _texts(topology)
    devices = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    others = [node.name for node in topology.nodes if node.kind is not NodeKind.DEVICE]
    meshed = any(graph[name] & set(devices) for name in devices)
    width = max(_width(texts[name]) for name in graph)
    if not others:
        places = _circle(devices, width)
    elif len(others) == 1 and not meshed and len(devices) > 2:
        places = _circle(devices, width) | {others[0]: (0.0, 0.0)}
    elif meshed:
        places = _ringed(devices, others, graph, width)
    else:
        places = _tiers(topology.nodes, graph, texts)
    boxes = {name: Box(x, y, _width(texts[name]), texts[name]) for name, (x, y) in places.items()}
    return Layout(boxes, _machines(topology))


def _width(text: str) -> float:
    return max(0.34, len(text) * LETTER + 0.14)


def _texts(topology: Topology) -> dict[str, str]:
    """A node's name, without its machine's where a frame says that; very long names are cut in the middle."""
    framed = _machines(topology)
    texts = {}
    for node in topology.nodes:
        prefix = f"{node.machine}."
        text = node.name.removeprefix(prefix) if node.machine in framed else node.name
        texts[node.name] = text if len(text) <= 20 else f"{text[:9]}…{text[-9:]}"
    return texts


def _machines(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Machines are framed only where there are several."""
    held: dict[str, list[str]] = defaultdict(list)
    for node in topology.nodes:
        if node.machine:
            held[node.machine].append(node.name)
    return {machine: tuple(names) for machine, names in held.items()} if len(held) > 1 else {}


def _circle(names: list[str], width: float) -> dict[str, tuple[float, float]]:
    """Clockwise from the top, wide enough for neighbours not to touch: no chord passes through a third box."""
    count = len(names)
    if count == 1:
        return {names[0]: (0.0, 0.0)}
    apart = max(width + GAP, 0.75)
    radius = max(1.5 if count > 2 else 1.1, apart / (2 * math.sin(math.pi / count)))
    # Half a step of turn puts two boxes level at the top instead of one alone, where they are few and even.
    turn = math.pi / 2 + (math.pi / count if count % 2 == 0 and count > 2 else math.pi / 2 if count == 2 else 0)
    angles = [turn - 2 * math.pi * i / count for i in range(count)]
    return {name: (radius * math.cos(a), radius * math.sin(a)) for name, a in zip(names, angles, strict=True)}


def _ringed(devices: list[str], others: list[str], graph: Graph, width: float) -> dict[str, tuple[float, float]]:
    """Devices that are wired to each other in a circle; switches and hosts around it, each beyond what it serves."""
    places = _circle(devices, max(width, 0.85))
    first = max(math.hypot(x, y) for x, y in places.values())
    level = _levels(devices, graph)
    for depth in range(1, max(level.values()) + 1):
        ring = [name for name in others if level[name] == depth]
        wanted = {name: _mean_angle([places[n] for n in graph[name] if level[n] < depth]) for name in ring}
        radius = max(first + TIER * depth, (width + GAP) * len(ring) / (2 * math.pi) + 0.5)
        for name, angle in _spread(wanted, (width + GAP) / radius).items():
            places[name] = (radius * math.cos(angle), radius * math.sin(angle))
    return places


def _mean_angle(places: list[tuple[float, float]]) -> float:
    x, y = sum(p[0] for p in places), sum(p[1] for p in places)
    return math.atan2(y, x) if math.hypot(x, y) > 1e-9 else math.pi / 2


def _spread(wanted: dict[str, float], least: float) -> dict[str, float]:
    """Angles as near as possible to the wanted ones, at least so far apart; even ones where there is no room."""
    order = sorted(wanted, key=lambda name: (wanted[name], name))
    gaps = [
        (wanted[order[(i + 1) % len(order)]] - wanted[order[i]]) % (2 * math.pi) or 2 * math.pi
        for i in range(len(order))
    ]
    tied = len({round(angle, 9) for angle in wanted.values()}) < len(wanted)
    if not tied and min(gaps) >= least:
        return wanted
    step = 2 * math.pi / len(order)
    return {name: wanted[order[0]] + step * i for i, name in enumerate(order)}


def _levels(devices: list[str], graph: Graph) -> dict[str, int]:
    """How many links a node is from the nearest device; what no link leads to stands with the rest."""
    level = dict.fromkeys(devices, 0)
    frontier = list(devices)
    while frontier:
        found = sorted({near for name in frontier for near in graph[name] if near not in level})
        level |= dict.fromkeys(found, level[frontier[0]] + 1)
        frontier = found
    return {name: level.get(name, 1) for name in graph}


def _tiers(nodes: tuple[Node, ...], graph: Graph, texts: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Devices in a row at the bottom, machine by machine; above them what they hang from, centred over it."""
    devices = [node.name for node in nodes if node.kind is NodeKind.DEVICE]
    level = _levels(devices, graph)
    machine = {node.name: node.machine for node in nodes}
    places: dict[str, tuple[float, float]] = {}
    x, last = 0.0, None
    for name in _by_branch(devices, graph, level, machine):
        half = _width(texts[name]) / 2
        x += half + (0.35 if last is not None and machine[name] != last else 0.0)
        places[name] = (x, 0.0)
        x, last = x + half + GAP, machine[name]
    for depth in range(1, max(level.values()) + 1):
        tier = [node.name for node in nodes if level[node.name] == depth]
        wanted = {name: _mean_x([places[n][0] for n in graph[name] if n in places]) for name in tier}
        for name, where in _row(wanted, {name: _width(texts[name]) for name in tier}).items():
            places[name] = (where, depth * TIER)
    return places


def _by_branch(devices: list[str], graph: Graph, level: dict[str, int], machine: dict[str, str]) -> list[str]:
    """Devices that hang from the same switch side by side, in the order in which branches first appear."""
    rank: dict[tuple[str, ...], int] = {}

    def branch(name: str) -> tuple[str, ...]:
        ups = sorted(n for n in graph[name] if level[n] > level[name])
        return (*branch(ups[0]), ups[0]) if ups else ()

    keys = {name: (machine[name], *branch(name)) for name in devices}
    for key in keys.values():
        for end in range(1, len(key) + 1):
            rank.setdefault(key[:end], len(rank))
    return sorted(devices, key=lambda n: [rank[keys[n][:end]] for end in range(1, len(keys[n]) + 1)])


def _mean_x(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _row(wanted: dict[str, float], widths: dict[str, float]) -> dict[str, float]:
    """Positions in the wanted order, near the wanted places, without overlap: clumps are centred on their wish."""
    order = list(wanted)
    order.sort(key=lambda name: wanted[name])
    clumps: list[tuple[list[str], float, float]] = []  # names, middle, width
    for name in order:
        clump = ([name], wanted[name], widths[name] + 3 * GAP)
        while clumps and clump[1] - clump[2] / 2 < clumps[-1][1] + clumps[-1][2] / 2:
            names = clumps[-1][0] + clump[0]
            clumps.pop()
            total = sum(widths[n] + 3 * GAP for n in names)
            clump = (names, _mean_x([wanted[n] for n in names]), total)
        clumps.append(clump)
    placed = {}
    for names, middle, total in clumps:
        x = middle - total / 2
        for name in names:
            placed[name] = x + (widths[name] + 3 * GAP) / 2
            x += widths[name] + 3 * GAP
    return placed
