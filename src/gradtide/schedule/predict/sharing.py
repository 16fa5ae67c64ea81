"""How flows share what lies on their paths: max-min fair. Sets of pairs are the bits of a number."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Path", "Sharing"]


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
        self._capacity = [capacity[number] for number in kept]
        self._users = [users[number] for number in kept]
        self._limits = [[place[number] for number in path.resources if number in place] for path in paths]
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
            return [self._paths[members[0]].bytes_per_s / counts[0]]
        rates = self._rates.get((company, counts))
        if rates is None:
            rates = self._rates[company, counts] = self._fill(members, counts, company)
        return rates

    def _group(self, active: int) -> list[tuple[int, list[int]]]:
        groups, rivals = [], self.rivals
        while active:
            group = todo = active & -active
            while todo:
                lowest = todo & -todo
                fresh = rivals[lowest.bit_length() - 1] & active & ~group
                group |= fresh
                todo = todo ^ lowest | fresh
            active ^= group
            groups.append((group, _bits(group)))
        return groups

    def _fill(self, members: list[int], counts: tuple[int, ...], company: int) -> list[float]:
        """All rates rise together; when a resource is full, the flows through it stay as they are."""
        flows, left, limits, users = (
            dict(zip(members, counts, strict=True)),
            self._capacity.copy(),
            self._limits,
            self._users,
        )
        crowd = [0] * len(left)
        for member, count in flows.items():
            for limit in limits[member]:
                crowd[limit] += count
        share = {limit: left[limit] / many for limit, many in enumerate(crowd) if many}
        rates = dict.fromkeys(members, 0.0)
        while company:
            level = min(share.values()) * (1 + 1e-12)
            full = 0
            for limit, offered in share.items():
                if offered <= level:
                    full |= users[limit]
            full &= company
            company ^= full
            lighter: set[int] = set()
            for member in _bits(full):
                rates[member] = level
                lighter.update(limits[member])
                taken = flows[member]
                for limit in limits[member]:
                    left[limit] -= level * taken
                    crowd[limit] -= taken
            for limit in lighter:
                if crowd[limit]:
                    share[limit] = left[limit] / crowd[limit]
                else:
                    del share[limit]
        return list(rates.values())


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, lowest first."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def _that_matter(users: dict[int, int], capacity: Sequence[float], paths: Sequence[Path]) -> list[int]:
    """Without resources that can't be full before a narrower one that all their users use. Some are used twice."""
    twice = {number for path in paths for number in path.resources if path.resources.count(number) > 1}
    kept: list[int] = []
    for number in sorted(users, key=capacity.__getitem__):
        if number in twice or not any(users[number] & ~users[narrower] == 0 for narrower in kept):
            kept.append(number)
    return kept
