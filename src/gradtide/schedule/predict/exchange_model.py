"""Collectives between hosts over direct links: all hosts exchange with each other at once, and share memory inside.

Such an exchange takes as long as its busiest host sends or receives. How long that is for so many bytes is measured at
a few sizes: a wire that lets bursts pass (the token bucket of a cloud's network, or of tc) has no one line, so between
two sizes the line through both counts, and beyond the largest it goes on as those before let expect.

All-reduces are measured. Others that move as many bytes may take longer, or less: they copy what is a rank's own, or
need one direction only. How much is measured at a few sizes too, and looked up between those.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from gradtide.errors import ConfigError

__all__ = ["ExchangeModel", "busiest_bytes"]

_ONE_EXCHANGE_BYTES = 64 << 10  # up to here all hosts send all they have to all others
_KIN = {"reduce": "broadcast", "gather": "all_gather", "scatter": "all_gather"}  # what others are taken to be like
_LARGE_BYTES = 1 << 20
_UNEVEN = {"gather": "all_gather", "scatter": "broadcast"}  # what they move where hosts have unequally many ranks


@dataclass(frozen=True, slots=True)
class ExchangeModel:
    """What exchanges between these hosts have taken."""

    ranks: tuple[int, ...]  # of each host
    samples: tuple[tuple[float, float], ...]  # bytes of the busiest host, and seconds; two or more, bytes rise
    flows: int = 1  # between each two ranks of different hosts
    ratios: tuple[tuple[str, tuple[tuple[int, float], ...]], ...] = ()  # of other operations: see corrected()

    @property
    def bytes_per_s(self) -> float:
        """Of a host's wire: the median of the lines from the largest size to all others, of which one may be off."""
        *others, (most, longest_s) = self.samples
        per_byte = median((longest_s - seconds) / (most - moved) for moved, seconds in others)
        return 1 / per_byte if per_byte > 0 else most / longest_s

    @property
    def latency_s(self) -> float:
        return self.samples[0][1]

    def seconds(self, operation: str, size_bytes: int) -> float:
        """Of one operation on tensors of that size (the larger of input and output)."""
        moved_s = self._moved_s(busiest_bytes(operation, self.ranks, size_bytes))
        return moved_s * _between(dict(self.ratios).get(_KIN.get(operation, operation), ()), size_bytes)

    def corrected(self, found: Sequence[tuple[str, int, float]]) -> "ExchangeModel":
        """By what other operations on tensors of some sizes have taken; sizes rise."""
        plain = replace(self, ratios=())
        ratios = {
            name: tuple((size, seconds / plain.seconds(name, size)) for other, size, seconds in found if other == name)
            for name in sorted({name for name, _, _ in found})
        }
        return replace(self, ratios=tuple(ratios.items()))

    def _moved_s(self, moved: float) -> float:
        """By the samples, but no less than the wire takes for as many bytes in the long run: a small size may have been
        measured while the wire let bursts pass."""
        return max(self._sampled_s(moved), moved / self.bytes_per_s)

    def _sampled_s(self, moved: float) -> float:
        if moved <= self.samples[0][0]:
            return self.latency_s
        for (below, before_s), (above, after_s) in pairwise(self.samples):
            if moved <= above:
                return before_s + (moved - below) / (above - below) * (after_s - before_s)
        return self.samples[-1][1] + (moved - self.samples[-1][0]) / self.bytes_per_s


def _between(ratios: Sequence[tuple[int, float]], size_bytes: int) -> float:
    """At this size: in proportion on a logarithmic scale. Of larger ones nothing is known, if only small were measured:
    the ratio of those is mostly what each operation takes besides."""
    if not ratios or (size_bytes > ratios[-1][0] and ratios[-1][0] < _LARGE_BYTES):
        return 1.0
    if size_bytes <= ratios[0][0]:
        return ratios[0][1]
    for (below, before), (above, after) in pairwise(ratios):
        if size_bytes <= above:
            return before + math.log(size_bytes / below) / math.log(above / below) * (after - before)
    return ratios[-1][1]


def busiest_bytes(operation: str, ranks: Sequence[int], size_bytes: int) -> float:
    """What the host that moves most sends, or receives if that is more. ranks: of each host."""
    hosts, size, share = len(ranks), sum(ranks), size_bytes / sum(ranks)
    match _UNEVEN.get(operation, operation) if len(set(ranks)) > 1 else operation:
        case "all_reduce" | "broadcast":
            # Of a large tensor each host adds up, or hands on, another share.
            small = size_bytes * (hosts - 1) <= _ONE_EXCHANGE_BYTES
            small |= hosts == 2 and operation == "broadcast"
            return size_bytes * (hosts - 1) * (1 if small else 2 / hosts)
        case "all_gather" | "reduce_scatter":
            # Each host's rows go to all others; or all that others are to have leaves, and comes back for each rank.
            return max(share * max((hosts - 1) * here, size - here) for here in ranks)
        case "reduce":
            return float(size_bytes * (hosts - 1))
        case "gather" | "scatter":
            return share * (size - ranks[0])
        case "all_to_all":
            return max(share * here * (size - here) for here in ranks)
    raise ConfigError(f"no prediction for {operation!r}; there are all_reduce, broadcast and all_gather, for instance")
