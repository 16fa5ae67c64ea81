"""Where each node of a drawing goes, in inches: a circle, a wheel around a hub, tiers, or a circle and tiers.

Several machines are always tiers, side by side: wires between two devices of a row then go in arcs on its free side.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace

from gradtide.topology.model import Node, NodeKind, Topology

__all__ = ["GAP", "Box", "NodeLayout", "box_width", "lay_out"]

HEIGHT = 0.34  # of a box
GRID_HEIGHT = 0.44  # of one from whose sides loops leave, too
GAP = 0.16  # between boxes that stand side by side
WIDEST = 14.0  # a row of devices; beyond that text gets too small on a slide
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
class NodeLayout:
    """A box for each node, and for each machine of several the boxes that it holds."""

    boxes: dict[str, Box]
    machines: dict[str, tuple[str, ...]]
    tiered: bool  # links go from the bottom of a box to the top of another, not from middle to middle
    core: float = 0.0  # the radius of a circle that links between boxes outside of it should go around
    loops: bool = False  # a grid: links between the ends of a row or column go beside what stands in between


def lay_out(topology: Topology) -> NodeLayout:
    """The same positions for the same topology, always; no two boxes overlap."""
    graph: Graph = {node.name: set() for node in topology.nodes}
    for link in topology.links:
        graph[link.source].add(link.target)
        graph[link.target].add(link.source)
    texts, machines = _texts(topology), _machines(topology)
    widths = {name: box_width(text) for name, text in texts.items()}
    devices = [node.name for node in topology.nodes if node.kind is NodeKind.DEVICE]
    others = [node.name for node in topology.nodes if node.kind is not NodeKind.DEVICE]
    meshed = any(graph[name] & set(devices) for name in devices)
    core, hub, tiered = 0.0, 0.0, False
    centre, grid = _centre(devices, graph), _grid(topology, max(widths.values()))
    if grid:
        places = grid
    elif not others and centre:
        places = _circle([name for name in devices if name != centre], max(*widths.values(), 1.1)) | {
            centre: (0.0, 0.0)
        }
    elif not others:
        mesh = len(topology.links) > 2 * len(devices)  # chords need more room than a ring
        places = _circle(devices, max(*widths.values(), 1.4 if mesh else 0.0))
    elif len(others) == 1 and not meshed and len(devices) > 2:
        places = _circle(devices, max(*widths.values(), 1.1)) | {others[0]: (0.0, 0.0)}
        hub = 0.5 * max(math.hypot(x, y) for x, y in places.values())  # a large hub keeps its links apart
        widths[others[0]] = max(widths[others[0]], hub)
    elif meshed and not machines:
        places, core = _ringed(devices, others, graph, max(widths.values()))
    else:
        tiered, places = True, _two_storeys(topology, graph, widths)
        widths |= _bars(others, graph, places, widths)
    tall = GRID_HEIGHT if grid else HEIGHT
    boxes = {name: Box(x, y, widths[name], texts[name], tall) for name, (x, y) in places.items()}
    if hub:
        boxes[others[0]] = replace(boxes[others[0]], height=max(HEIGHT, hub))
    return NodeLayout(boxes, machines, tiered, core, bool(grid))


def _centre(devices: list[str], graph: Graph) -> str:
    """The device that all others are wired to and to nobody else, if there is one and they are many."""
    hub = next((name for name in devices if len(graph[name]) == len(devices) - 1), "")
    return hub if len(devices) > 3 and all(graph[name] == {hub} for name in devices if name != hub) else ""


def _grid(topology: Topology, width: float) -> dict[str, tuple[float, float]]:
    """Devices whose names end in their row and column (gpu1-0), if all links are between neighbours of one of them."""
    found = {node.name: re.fullmatch(r"\D*(\d+)-(\d+)", node.name) for node in topology.nodes}
    at = {name: (int(match[1]), int(match[2])) for name, match in found.items() if match}
    if len(at) < len(found) or len(set(at.values())) < len(at):
        return {}
    sides = [max(places) + 1 for places in zip(*at.values(), strict=True)]
    for link in topology.links:
        ends = zip(at[link.source], at[link.target], sides, strict=True)
        steps = [(abs(a - b), side - 1) for a, b, side in ends if a != b]
        if len(steps) != 1 or steps[0][0] not in (1, steps[0][1]):
            return {}
    return {name: (column * (width + GAP + 0.6), -row * TIER) for name, (row, column) in at.items()}


def box_width(text: str) -> float:
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
    apart = max(width + GAP, 1.15 if count <= 20 else 0.85)
    radius = max(1.5 if count > 2 else 1.1, apart / (2 * math.sin(math.pi / count)))
    # Half a step of turn puts two boxes level at the top instead of one alone, where they are few and even.
    turn = math.pi / 2 + (math.pi / count if count % 2 == 0 and count > 2 else math.pi / 2 if count == 2 else 0)
    angles = [turn - 2 * math.pi * i / count for i in range(count)]
    return {name: (radius * math.cos(a), radius * math.sin(a)) for name, a in zip(names, angles, strict=True)}


def _ringed(
    devices: list[str], others: list[str], graph: Graph, width: float
) -> tuple[dict[str, tuple[float, float]], float]:
    """Devices that are wired to each other in a circle; switches and hosts around it, each beyond what it serves.

    The whole is turned so that the first of the outermost stands on the right. Also gives the circle's radius.
    """
    places = _circle(devices, max(width, 1.3))
    core = max(math.hypot(x, y) for x, y in places.values())
    level = _levels(devices, graph)
    angle = 0.0
    for depth in range(1, max(level.values()) + 1):
        ring = [name for name in others if level[name] == depth]
        wanted = {name: _mean_angle([places[n] for n in graph[name] if level[n] < depth]) for name in ring}
        radius = max(core + TIER * depth, (width + GAP) * len(ring) / (2 * math.pi) + 0.5)
        angles = _spread(wanted, (width + GAP) / radius)
        places |= {name: (radius * math.cos(a), radius * math.sin(a)) for name, a in angles.items()}
        angle = angles[ring[0]]
    turn = math.cos(angle), math.sin(angle)
    return {n: (x * turn[0] + y * turn[1], y * turn[0] - x * turn[1]) for n, (x, y) in places.items()}, core


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


def _two_storeys(topology: Topology, graph: Graph, widths: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Tiers; where that is too wide, half of the machines stand upside down above what joins them."""
    whole = _tiers(topology.nodes, graph, widths)
    machines = list(_machines(topology))
    shared = [node.name for node in topology.nodes if node.machine not in machines]
    top = max(y for _, y in whole.values())
    level = {whole[name][1] for name in shared}
    if max(x for x, _ in whole.values()) < WIDEST or len(machines) < 2 or level != {top}:
        return whole
    half = (len(machines) + 1) // 2
    places: dict[str, tuple[float, float]] = {}
    for part, sign in ((machines[:half], 1), (machines[half:], -1)):
        nodes = tuple(node for node in topology.nodes if node.machine in (*part, "") or node.name in shared)
        inner = {node.name: graph[node.name] & {n.name for n in nodes} for node in nodes}
        tiers = _tiers(nodes, inner, widths)
        middle = max(x for x, _ in tiers.values()) / 2
        places |= {name: (x - middle, sign * (top - y)) for name, (x, y) in tiers.items()}
    return places


def _bars(
    others: list[str], graph: Graph, places: dict[str, tuple[float, float]], widths: dict[str, float]
) -> dict[str, float]:
    """Widths of switches that join several: drawn as bars over what hangs from them, so that links fan out.

    A bar stops short of the next box in its tier.
    """
    bars = {}
    for name in others:
        x, y = places[name]
        reach = [abs(places[n][0] - x) for n in graph[name] if places[n][1] != y]
        room = [abs(places[n][0] - x) - widths[n] / 2 - 2 * GAP for n in places if n != name and places[n][1] == y]
        room = [space / 2 if space > 0 else 0.0 for space in room]
        if len(reach) > 2:
            bars[name] = max(widths[name], 2 * min(max(reach) + 0.15, *room, math.inf))
    return bars


def _tiers(nodes: tuple[Node, ...], graph: Graph, widths: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Devices in a row at the bottom, machine by machine; above them what they hang from, centred over it."""
    devices = [node.name for node in nodes if node.kind is NodeKind.DEVICE]
    level = _levels(devices, graph)
    machine = {node.name: node.machine for node in nodes}
    places: dict[str, tuple[float, float]] = {}
    x = 0.0
    row = _by_branch(devices, graph, level, machine)
    for held in dict.fromkeys(machine[name] for name in row):
        mine = [name for name in row if machine[name] == held]
        own = sum(widths[name] + GAP for name in mine) - GAP
        room = max(own, _widest_tier([n for n in graph if machine[n] == held], level, widths) if held else 0.0)
        x += (room - own) / 2
        for name in mine:
            places[name] = (x + widths[name] / 2, 0.0)
            x += widths[name] + GAP
        x += (room - own) / 2 + 0.35
    for depth in range(1, max(level.values()) + 1):
        tier = [node.name for node in nodes if level[node.name] == depth]
        wanted = {name: _mean_x([places[n][0] for n in graph[name] if n in places]) for name in tier}
        for name, where in _row(wanted, widths).items():
            places[name] = (where, depth * TIER)
    return places


def _widest_tier(names: list[str], level: dict[str, int], widths: dict[str, float]) -> float:
    """How wide the widest row of switches and hosts of a machine is."""
    rows: dict[int, float] = defaultdict(float)
    for name in names:
        rows[level[name]] += (widths[name] + 3 * GAP) if level[name] else 0.0
    return max(rows.values(), default=0.0)


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
