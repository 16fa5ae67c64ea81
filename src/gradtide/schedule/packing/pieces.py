"""A packing cut into pieces of equal size, each with the trees that it takes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.packing.generate import Packing
from gradtide.schedule.packing.network import WireNetwork

__all__ = ["Arc", "Step", "TreeGroup", "arcs_of", "cut", "groups_of", "hop_loads", "steps"]

Arc = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TreeGroup:
    """A part of the buffer that is added up along `up` into the root and copied along `down` from it."""

    root: int
    part: float
    up: tuple[Arc, ...]  # (source, target), children before parents
    down: tuple[Arc, ...]  # parents before children


class Step(NamedTuple):
    """A piece goes from one node to the next, after certain other steps (places in their list)."""

    source: int
    target: int
    piece: int
    reduces: bool
    channel: int = 0
    after: tuple[int, ...] = ()


def groups_of(packing: Packing) -> list[TreeGroup]:
    """Pairs the trees into each root with the trees out of it, by root."""
    trees, groups = packing.trees, []
    for root in sorted(set(trees.roots.tolist())):
        here = [at for at in np.flatnonzero(trees.roots == root)[::-1] if packing.parts[at] > 0]
        here.sort(key=lambda at: -packing.parts[at])
        up = [(float(packing.parts[at]), arcs_of(trees.parents[at], True)) for at in here if trees.inward[at]]
        down = [(float(packing.parts[at]), arcs_of(trees.parents[at], False)) for at in here if not trees.inward[at]]
        groups += _paired(root, up, down)
    return groups


def _hops(parents: NDArray[np.intp]) -> tuple[Arc, ...]:
    """(child, parent) of each node in a tree, parents before children."""
    todo, hops = [int(node) for node in np.flatnonzero(parents >= 0)], []
    done = {int(parents[node]) for node in todo} - set(todo)
    while todo:
        next_ones = [node for node in todo if int(parents[node]) in done]
        hops += [(node, int(parents[node])) for node in next_ones]
        done |= set(next_ones)
        todo = [node for node in todo if node not in done]
    return tuple(hops)


def arcs_of(parents: NDArray[np.intp], inward: bool) -> tuple[Arc, ...]:
    """The hops of a tree in the order of a group's `up` or `down`."""
    hops = _hops(parents)
    return tuple(reversed(hops)) if inward else tuple((parent, child) for child, parent in hops)


Shared = list[tuple[float, tuple[Arc, ...]]]


def _paired(root: int, up: Shared, down: Shared) -> list[TreeGroup]:
    """Lays both directions side by side: a group is a stretch in which neither changes its tree."""
    ups, downs = up or [(1.0, ())], down or [(1.0, ())]
    end_up, end_down = np.cumsum([part for part, _ in ups]), np.cumsum([part for part, _ in downs])
    total = min(float(end_up[-1]), float(end_down[-1]))
    groups, start = [], 0.0
    for end in sorted(end for end in {*end_up.tolist(), *end_down.tolist()} if end <= total):
        if end - start > 1e-6:
            middle = (start + end) / 2
            into = ups[min(int(np.searchsorted(end_up, middle)), len(ups) - 1)][1]
            out = downs[min(int(np.searchsorted(end_down, middle)), len(downs) - 1)][1]
            groups.append(TreeGroup(root, end - start, into, out))
        start = end
    return groups


def hop_loads(network: WireNetwork, groups: list[TreeGroup]) -> NDArray[np.float64]:
    """wires × groups: the seconds that a byte of each group keeps each wire busy."""
    used = np.zeros((len(network.tails), len(groups)))
    for at, group in enumerate(groups):
        tails, heads = zip(*(group.up + group.down), strict=True)
        np.add.at(used[:, at], network.arc_of[list(tails), list(heads)], 1.0)
    loads: NDArray[np.float64] = network.wire_load @ used / network.bytes_per_s[:, None]
    return loads


def steps(group: TreeGroup) -> int:
    """How many hops a piece takes one after the other: a node adds up one arrival at a time, but sends at once."""
    done: dict[int, int] = {}
    for source, target in group.up:  # children come first, so what the source waits for is known
        done[target] = max(done.get(target, 0), done.get(source, 0)) + 1
    reached = {group.root: done.get(group.root, 0)}
    for source, target in group.down:
        reached[target] = reached[source] + 1
    return max(reached.values())


def cut(groups: list[TreeGroup], pieces: int, per_root: bool) -> NDArray[np.intp]:
    """How many of so many equal pieces each group gets, by largest remainder; per_root: as many at every root."""
    parts = np.array([group.part for group in groups])
    roots = np.array([group.root if per_root else 0 for group in groups])
    counts = np.zeros(len(groups), dtype=np.intp)
    kinds = sorted({group.root for group in groups}) if per_root else [0]
    for root in kinds:
        here = np.flatnonzero(roots == root)
        share = parts[here] / parts[here].sum() * (pieces // len(kinds))
        counts[here] = np.floor(share + 1e-9)
        short = pieces // len(kinds) - counts[here].sum()
        counts[here[np.argsort(counts[here] - share, kind="stable")[:short]]] += 1
    return counts
