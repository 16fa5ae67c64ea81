"""The cheapest ways through the core of a fabric: all switches at once, a distance at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.topology.model import Link

__all__ = ["FEMTO", "NOWHERE", "Core", "Cost", "link_cost"]

Cost = tuple[
    int, int, float
]  # latency in femtoseconds (so that sums are exact), links, minus the narrowest link's width
NOWHERE: Cost = (0, 0, -float("inf"))
FEMTO = 1e15
HOPS = 1 << 12  # more links than a way has
FAR = int(np.iinfo(np.int64).max)


def link_cost(link: Link) -> Cost:
    return round(link.latency_s * FEMTO), 1, -link.bytes_per_s * link.count


@dataclass(frozen=True, slots=True, eq=False)
class _Inward:
    """From every node to one of them: latency and hops in one number, and the narrowest link of the way."""

    key: list[int]
    width: list[float]


class Core:
    """The nodes that pass traffic on and lie on circles.

    In a fabric few distances differ (a leaf is one, two or three tiers away), so all nodes of one distance are settled
    together: 2,000 switches take a few milliseconds.
    """

    def __init__(self, names: Sequence[str], links: Sequence[Link]) -> None:
        self.number = {name: i for i, name in enumerate(names)}
        inner = [link for link in links if link.source in self.number and link.target in self.number]
        longest = max((link.latency_s for link in inner), default=0.0) * max(len(names), 1)
        self._scale = min(FEMTO, float(FAR // HOPS // 4) / longest) if longest else FEMTO
        self._links = inner
        self._source = np.array([self.number[link.source] for link in inner], dtype=np.intp)
        target = np.array([self.number[link.target] for link in inner], dtype=np.intp)
        self._by_target = np.argsort(target, kind="stable")
        self._starts = np.searchsorted(target[self._by_target], np.arange(len(names) + 1))
        latency = np.array([round(link.latency_s * self._scale) for link in inner], dtype=np.int64)
        self._key = latency * HOPS + 1
        self._width = np.array([link.bytes_per_s * link.count for link in inner])
        self._onto = target.tolist()
        self._step = list(zip(self._key.tolist(), self._width.tolist(), strict=True))
        self._out: dict[str, list[int]] = {}
        for at, link in enumerate(inner):
            self._out.setdefault(link.source, []).append(at)
        self._inward: dict[str, _Inward] = {}
        self._steps: dict[tuple[str, str], list[Link]] = {}

    def cost(self, source: str, target: str) -> Cost | None:
        """The least cost from one node to another."""
        found, at = self._towards(target), self.number[source]
        key = found.key[at]
        if key == FAR:
            return None
        return round(key // HOPS * (FEMTO / self._scale)), key % HOPS, -found.width[at]

    def steps(self, source: str, target: str) -> list[Link]:
        """The links that begin a cheapest way, in the order of their description."""
        pair = (source, target)
        if pair not in self._steps:
            self._steps[pair] = self._first_links(source, target)
        return self._steps[pair]

    def _first_links(self, source: str, target: str) -> list[Link]:
        found, at = self._towards(target), self.number[source]
        links = []
        for number in self._out[source]:
            onto = self._onto[number]
            if found.key[onto] + self._step[number][0] != found.key[at]:
                continue
            if min(found.width[onto], self._step[number][1]) == found.width[at]:
                links.append(self._links[number])
        return links

    def _towards(self, target: str) -> _Inward:
        if target not in self._inward:
            self._inward[target] = self._search(self.number[target])
        return self._inward[target]

    def _search(self, target: int) -> _Inward:
        key = np.full(len(self.number), FAR, dtype=np.int64)
        width = np.full(len(self.number), np.inf)
        key[target] = 0
        open_ = np.ones(len(self.number), dtype=bool)
        while True:
            nearest = np.min(key, where=open_, initial=FAR)
            if nearest == FAR:
                return _Inward(key.tolist(), width.tolist())
            settled = np.flatnonzero(open_ & (key == nearest))
            open_[settled] = False
            self._relax(settled, key, width)

    def _relax(self, settled: NDArray[np.intp], key: NDArray[np.int64], width: NDArray[np.float64]) -> None:
        """Every link adds a hop, so nodes that were settled together never improve each other."""
        starts, counts = self._starts[settled], self._starts[settled + 1] - self._starts[settled]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        links = self._by_target[np.repeat(starts, counts) + offsets]
        before, onto = self._source[links], np.repeat(settled, counts)
        new_key = key[onto] + self._key[links]
        old = key[before]
        np.minimum.at(key, before, new_key)
        width[before[new_key < old]] = 0.0  # found anew: what was known of a longer way no longer counts
        as_short = new_key == key[before]
        reached = np.minimum(width[onto], self._width[links])
        np.maximum.at(width, before[as_short], reached[as_short])
