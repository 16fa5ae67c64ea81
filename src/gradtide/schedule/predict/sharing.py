"""How flows share what lies on their paths: max-min fair. Sets of pairs are the bits of a number.

Rates are computed so that rounding is the same however many copies of a pair there are: a share is a capacity over a
whole number of flows, and what a level takes from a capacity is that level times a whole number. Schedules of many
slices need it: whoever ends a little later meets others on its links, and a difference in the last digit grows tenfold
every hundred events. Classes of pairs that stand for many give the same digits as all of them one by one.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["Competition", "Path", "Sharing"]

MANY = 20  # bits of a mask, above which numpy finds them sooner


class Path(NamedTuple):
    """The way from one node to another, in numbers."""

    resources: tuple[int, ...]  # what it uses, the links first
    latency_s: float
    bytes_per_s: float  # when nobody else is there
    links: tuple[int, ...]


class Sharing:
    """How flows between some pairs of nodes share. Bit i of a mask is pair i. What was found once is remembered."""

    def __init__(self, paths: Sequence[Path], capacity: Sequence[float]) -> None:
        self._paths = paths
        users: dict[int, int] = defaultdict(int)  # of each resource
        for at, path in enumerate(paths):
            for number in path.resources:
                users[number] |= 1 << at
        self.rivals = [0] * len(paths)  # of each pair: who uses some resource of its own, too
        for at, path in enumerate(paths):
            for number in path.resources:
                self.rivals[at] |= users[number]
            self.rivals[at] &= ~(1 << at)
        kept = _that_matter(users, capacity, paths)
        place = {number: at for at, number in enumerate(kept)}
        self.capacity = [capacity[number] for number in kept]
        self._users = [users[number] for number in kept]
        self.limits = [  # what a pair's flows use, and how often
            [(place[number], times) for number, times in Counter(path.resources).items() if number in place]
            for path in paths
        ]
        self._companies: dict[int, list[tuple[int, list[int]]]] = {}
        self._rates: dict[tuple[int, tuple[int, ...]], list[float]] = {}

    def companies(self, active: int) -> list[tuple[int, list[int]]]:
        """The active pairs in groups that compete, directly or through others: each as a mask and as numbers."""
        found = self._companies.get(active)
        if found is None:
            found = self._companies[active] = self._group(active)
        return found

    def fair_rates(self, members: list[int], counts: tuple[int, ...], company: int) -> list[float]:
        """Bytes/s of each flow between the pairs of a company, with so many flows each. Max-min fair."""
        if len(members) == 1:
            return [self.alone(members[0], counts[0])]
        rates = self._rates.get((company, counts))
        if rates is None:
            rates = self._rates[company, counts] = self._fill(members, counts, company)
        return rates

    def alone(self, pair: int, flows: int) -> float:
        """Bytes/s of each of so many flows between a pair that has no rivals."""
        return min([self.capacity[limit] / (times * flows) for limit, times in self.limits[pair]])

    def _group(self, active: int) -> list[tuple[int, list[int]]]:
        groups, rivals = [], self.rivals
        while active:
            group = fresh = active & -active
            while fresh:  # all who joined in one go: to mask once for each of them takes three times as long
                near = 0
                for number in _bits(fresh):
                    near |= rivals[number]
                fresh = near & active & ~group
                group |= fresh
            active ^= group
            groups.append((group, _bits(group)))
        return groups

    def _fill(self, members: list[int], counts: tuple[int, ...], company: int) -> list[float]:
        """All rates rise together; when a resource is full, the flows through it stay as they are."""
        flows, left, limits, users = (
            dict(zip(members, counts, strict=True)),
            self.capacity.copy(),
            self.limits,
            self._users,
        )
        crowd = [0] * len(left)
        for member, count in flows.items():
            for limit, times in limits[member]:
                crowd[limit] += count * times
        share = {limit: left[limit] / many for limit, many in enumerate(crowd) if many}
        rates = dict.fromkeys(members, 0.0)
        while company:
            level = min(share.values())
            nearly = level * (1 + 1e-12)
            full = 0
            for limit, offered in share.items():
                if offered <= nearly:
                    full |= users[limit]
            full &= company
            company ^= full
            taken: dict[int, int] = defaultdict(int)
            for member in _bits(full):
                rates[member] = level
                count = flows[member]
                for limit, times in limits[member]:
                    taken[limit] += count * times
            for limit, many in taken.items():
                left[limit] -= level * many
                crowd[limit] -= many
                if crowd[limit]:
                    share[limit] = left[limit] / crowd[limit]
                else:
                    del share[limit]
        return list(rates.values())


class Competition(Protocol):
    """What a simulation asks about the ways between ranks: Resources answers it, and so do classes of links."""

    def required(self, source: str, target: str) -> Path: ...

    def sharing(self, pairs: tuple[tuple[str, str], ...]) -> Sharing: ...


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, lowest first."""
    if mask.bit_count() > MANY:
        octets = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
        return np.unpackbits(octets, bitorder="little").nonzero()[0].tolist()
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def _that_matter(users: dict[int, int], capacity: Sequence[float], paths: Sequence[Path]) -> list[int]:
    """Without resources that can't be full before a narrower one that all their users use, and as often."""
    often: dict[int, dict[int, int]] = defaultdict(dict)  # of each resource: who uses it how often, if more than once
    for at, path in enumerate(paths):
        if len(set(path.resources)) < len(path.resources):
            for number, times in Counter(path.resources).items():
                if times > 1:
                    often[number][at] = times
    kept: list[int] = []
    for number in sorted(users, key=capacity.__getitem__):
        mine = often.get(number)
        for narrower in kept:
            if users[number] & ~users[narrower]:
                continue
            if not mine or all(often[narrower].get(at, 1) >= times for at, times in mine.items()):
                break
        else:
            kept.append(number)
    return kept
