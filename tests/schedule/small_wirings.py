"""Random wirings of 2 to 12 devices, of eight kinds: what plans of few devices are held against the bound on.

Seeds from TUNING on were used while the planner was made; those below 200 are only ever measured.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import both_ways
from gradtide.topology.rates import ETHERNET_S, NVLINK_S, PCIE_S, QPI_S, RDMA_S, SWITCH_S

__all__ = ["KINDS", "TUNING", "small_wiring"]

TUNING = 10_000  # the first seed that may be tuned to
Wiring = tuple[list[Node], list[Link]]
Chance = np.random.Generator


def small_wiring(seed: int) -> Topology:
    """The wiring of this seed; its name says its kind."""
    chance = np.random.default_rng([seed, 23])
    build = KINDS[seed % len(KINDS)]
    nodes, links = build(chance)
    return Topology(f"{build.__name__.strip('_')}-{seed}", tuple(nodes), tuple(links))


def _gpus(count: int, machine: str = "host0") -> list[Node]:
    start = f"{machine}.gpu" if machine != "host0" else "gpu"
    return [Node(f"{start}{at}", NodeKind.DEVICE, machine) for at in range(count)]


def _one(chance: Chance, *values: float) -> float:
    return float(chance.choice(values))


def _rate(chance: Chance) -> float:
    return float(chance.integers(2, 51)) * 1e9


def _ring(chance: Chance) -> Wiring:
    """A circle, wires all alike or each its own, with or without chords."""
    nodes = _gpus(int(chance.integers(3, 13)))
    same, width = chance.random() < 0.4, _rate(chance)
    pairs = [(at, (at + 1) % len(nodes)) for at in range(len(nodes))]
    pairs += [tuple(chance.choice(len(nodes), 2, replace=False)) for _ in range(int(chance.integers(4)))]
    links = []
    for a, b in sorted({(min(pair), max(pair)) for pair in pairs}):
        links += both_ways(nodes[a].name, nodes[b].name, width if same else _rate(chance), PCIE_S)
    return nodes, links


def _torus_with_buses(chance: Chance) -> Wiring:
    """A grid whose edges meet; rows, columns or all of it are one bus, or each wire goes one way at a time."""
    rows, columns = [(2, 2), (2, 3), (3, 2), (2, 4), (3, 3), (2, 5), (2, 6), (3, 4), (4, 3)][int(chance.integers(9))]
    nodes = _gpus(rows * columns)
    widths, shared = (_rate(chance), _rate(chance)), int(chance.integers(5))
    links: dict[tuple[str, str], Link] = {}
    for at in range(rows * columns):
        row, column = divmod(at, columns)
        for axis, there in enumerate((row * columns + (column + 1) % columns, (row + 1) % rows * columns + column)):
            pair = f"{min(at, there)}-{max(at, there)}"
            wire = ((f"row{row}", ""), ("", f"column{column}"), ("all", "all"), (pair, pair), (f"row{row}", pair))
            for link in both_ways(nodes[at].name, nodes[there].name, widths[axis], PCIE_S):
                links.setdefault((link.source, link.target), replace(link, wire=wire[shared][axis]))
    return nodes, list(links.values())


def _switch_tree(chance: Chance) -> Wiring:
    """Devices under switches under switches, any number on each; uplinks wider or narrower than what hangs on them."""
    nodes = _gpus(int(chance.integers(3, 13)))
    switches = [Node(f"switch{at}", NodeKind.SWITCH) for at in range(int(chance.integers(1, 7)))]
    links = []
    for at in range(1, len(switches)):
        above = switches[int(chance.integers(at))].name
        links += both_ways(switches[at].name, above, _rate(chance), SWITCH_S, int(chance.integers(1, 3)))
    same, width = chance.random() < 0.5, _rate(chance)
    for node in nodes:
        on = switches[int(chance.integers(len(switches)))].name
        links += both_ways(node.name, on, width if same else _rate(chance), PCIE_S / 2)
    return [*nodes, *switches], links


def _nvlinks(chance: Chance) -> Wiring:
    """A random connected graph with one to three NVLinks a pair, perhaps beside a PCIe switch."""
    nodes = _gpus(int(chance.integers(3, 13)))
    pairs = {(int(chance.integers(at)), at) for at in range(1, len(nodes))}
    for _ in range(int(chance.integers(len(nodes) + 1))):
        a, b = sorted(chance.choice(len(nodes), 2, replace=False).tolist())
        pairs.add((a, b))
    links, width = [], _one(chance, 18e9, 20e9, 25e9, 50e9)
    for a, b in sorted(pairs):
        links += both_ways(nodes[a].name, nodes[b].name, width, NVLINK_S, int(chance.integers(1, 4)))
    if chance.random() < 0.3:
        links += [link for node in nodes for link in both_ways(node.name, "pcie", 16e9, PCIE_S / 2)]
        return [*nodes, Node("pcie", NodeKind.SWITCH, "host0")], links
    return nodes, links


def _pcie_tree(chance: Chance) -> Wiring:
    """One or two CPUs, each with GPUs and switches with GPUs; some switches' uplink goes one way at a time."""
    cpus = [Node(f"cpu{at}", NodeKind.HOST, "host0") for at in range(int(chance.integers(1, 3)))]
    nodes, links = _gpus(int(chance.integers(2, 13))), list[Link]()
    if len(cpus) == 2:
        links += both_ways("cpu0", "cpu1", _one(chance, 9.6e9, 19.2e9), QPI_S, int(chance.integers(1, 3)))
    width = _one(chance, 8e9, 16e9, 32e9)
    switches = [Node(f"switch{at}", NodeKind.SWITCH, "host0") for at in range(int(chance.integers(1, 5)))]
    for switch in switches:
        wire = f"{switch.name} bus" if chance.random() < 0.2 else ""
        up = both_ways(switch.name, cpus[int(chance.integers(len(cpus)))].name, width, PCIE_S / 2)
        links += [replace(link, wire=wire) for link in up]
    for node in nodes:
        on = switches[int(chance.integers(len(switches)))] if chance.random() < 0.9 else cpus[0]
        links += both_ways(node.name, on.name, width, PCIE_S / 2)
    return [*nodes, *cpus, *switches], links


def _machines(chance: Chance) -> Wiring:
    """Two to six machines of one to four GPUs on a switch, with one or two NICs and perhaps a CPU, on one fabric."""
    nodes, links = [Node("fabric", NodeKind.SWITCH)], list[Link]()
    count = int(chance.integers(2, 7))
    most = 12 // count
    alike, gbits, inner = chance.random() < 0.5, _one(chance, 10, 25, 100, 200), _one(chance, 16e9, 32e9, 150e9)
    gpus, cpu, fabric_s = (
        int(chance.integers(1, min(4, most) + 1)),
        chance.random() < 0.5,
        _one(chance, ETHERNET_S, RDMA_S),
    )
    for name in (f"host{at}" for at in range(count)):
        here = [Node(f"{name}.gpu{at}", NodeKind.DEVICE, name) for at in range(gpus)]
        nodes += [*here, Node(f"{name}.switch", NodeKind.SWITCH, name)]
        if cpu:
            nodes.append(Node(f"{name}.cpu", NodeKind.HOST, name))
            links += both_ways(f"{name}.cpu", f"{name}.switch", 16e9, PCIE_S / 2)
        for node in here:
            links += both_ways(node.name, f"{name}.switch", inner, NVLINK_S / 2)
        nodes.append(Node(f"{name}.nic", NodeKind.NIC, name))
        links += both_ways(f"{name}.switch", f"{name}.nic", inner, PCIE_S / 2)
        links += both_ways(f"{name}.nic", "fabric", gbits / 8 * 1e9, fabric_s / 2)
        if not alike:
            gpus, cpu, gbits = (
                int(chance.integers(1, min(4, most) + 1)),
                chance.random() < 0.5,
                _one(chance, 10, 25, 100),
            )
    return nodes, links


def _scattered(chance: Chance) -> Wiring:
    """A random one-way circle; hosts and switches between two of it; other links at random, some on a bus."""
    devices = _gpus(int(chance.integers(3, 13)))
    others = [Node(f"cpu{at}", NodeKind.HOST) for at in range(int(chance.integers(3)))]
    others += [Node(f"switch{at}", NodeKind.SWITCH) for at in range(int(chance.integers(3)))]
    names = [node.name for node in (*devices, *others)]
    order = chance.permutation(len(devices))
    pairs = {(names[a], names[b]) for a, b in zip(order, np.roll(order, 1), strict=True)}
    for node in others:
        a, b = chance.choice(len(devices), 2, replace=False)
        pairs |= {(names[a], node.name), (node.name, names[b])}
    for _ in range(int(chance.integers(2 * len(devices)))):
        a, b = chance.choice(len(names), 2, replace=False)
        pairs.add((names[a], names[b]))
    links = []
    for a, b in sorted(pairs):
        wire = f"bus{chance.integers(3)}" if chance.random() < 0.15 else ""
        links.append(Link(a, b, float(chance.integers(1, 17)) * 1e9, 2e-6, int(chance.integers(1, 3)), wire))
    return [*devices, *others], links


def _bridged(chance: Chance) -> Wiring:
    """A PCIe tree with NVLink bridges between some pairs."""
    nodes, links = _pcie_tree(chance)
    gpus = [node.name for node in nodes if node.kind is NodeKind.DEVICE]
    for a, b in _pairs(chance, gpus):
        links += both_ways(a, b, _one(chance, 20e9, 25e9), NVLINK_S, int(chance.integers(1, 5)))
    return nodes, links


def _pairs(chance: Chance, names: list[str]) -> Iterator[tuple[str, str]]:
    order = [names[at] for at in chance.permutation(len(names))]
    for a, b in zip(order[::2], order[1::2], strict=False):
        if chance.random() < 0.7:
            yield a, b


KINDS: tuple[Callable[[Chance], Wiring], ...] = (
    _ring, _torus_with_buses, _switch_tree, _nvlinks, _pcie_tree, _machines, _scattered, _bridged,
)  # fmt: skip
