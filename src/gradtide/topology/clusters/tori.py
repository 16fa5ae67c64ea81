"""Devices in a grid whose edges meet: each is wired to the next and the one before along every axis."""

from itertools import product
from math import prod

from gradtide.errors import TopologyError
from gradtide.topology.clusters.build import MOST_DEVICES
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.rates import PCIE_S

__all__ = ["torus"]

SHAPE = 10e9  # as ring:N: round, so that a sum fits in the head
MOST_AXES = 6


def torus(text: str) -> Topology:
    """Devices in a grid of any sides whose edges meet, 10 GB/s each way to each neighbour; gpu1-0-3 is at (1, 0, 3)."""
    sides = tuple(int(side) for side in text.split("x"))
    if len(sides) > MOST_AXES or min(sides) < 2 or prod(sides) > MOST_DEVICES:
        raise TopologyError(
            f"torus: up to {MOST_AXES} sides of 2 or more, {MOST_DEVICES:,} devices in all; not {text[:40]}"
        )
    nodes = [Node(_name(place), NodeKind.DEVICE, "host0") for place in product(*map(range, sides))]
    links: list[Link] = []
    for place in product(*map(range, sides)):
        for axis, side in enumerate(sides):
            if side == 2 and place[axis] == 1:
                continue  # the way round is the same wire
            there = (*place[:axis], (place[axis] + 1) % side, *place[axis + 1 :])
            a, b = _name(place), _name(there)
            links += [Link(a, b, SHAPE, PCIE_S), Link(b, a, SHAPE, PCIE_S)]
    return Topology(f"torus:{text}", tuple(nodes), tuple(links))


def _name(place: tuple[int, ...]) -> str:
    return "gpu" + "-".join(str(at) for at in place)
