"""Layouts in two halves on the same devices: copies of the first units and shards of the last, or the other way round.

So convolutions, which have much to compute and few parameters, are copies, and dense layers, of which the opposite is
true, are shards. After Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014).
"""

from itertools import product

import numpy as np

from gradtide.schedule.step.choice.ways import choose_ways
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.score import BatchTerms, score, stage_terms
from gradtide.schedule.step.search import Found, LayoutSearch

__all__ = ["mixed_halves"]

TRIED = 3  # places to change over, of each number of micro-batches, that are looked at more closely
KEPT = 2  # layouts


def mixed_halves(search: LayoutSearch) -> list[Found]:
    """The best few by closed form that fit, best first."""
    count = len(search.devices)
    if count < 2 or search.triangle.units < 2 or not (search.wishes.copies and search.wishes.shards):
        return []
    order = next((one for one in search.wishes.orders if one in ("1f1b", "gpipe")), None)
    if order is None:
        return []
    found = list[Found]()
    for micro_batches, copies_first in product(search.wishes.counts(search.samples), (True, False)):
        batch = BatchTerms(search.samples, micro_batches, order, search.costs.overheads)
        for cut in _best_cuts(search, batch, copies_first=copies_first):
            layout = _layout(search, batch, cut, copies_first=copies_first)
            one = score(layout, search.costs, search.devices, search.samples, search.links)
            if one.fits(search.devices.memory_bytes):
                found.append(Found(layout, one.seconds))
    return sorted(found, key=lambda one: one.seconds)[:KEPT]


def _best_cuts(search: LayoutSearch, batch: BatchTerms, *, copies_first: bool) -> list[int]:
    """Where to change over: devices do both halves one after the other, so what they take is added up."""
    units, count = search.triangle.units, len(search.devices)
    whole = []
    for copies, shards in ((count, 1), (1, count)):
        place = search.devices.place(0, copies, shards)
        figures = search.figures_for(shards)
        first, rest, _ = stage_terms(figures, place, batch, search.devices.narrowest, recompute=False)
        whole.append(first + rest)
    before, after = whole if copies_first else whole[::-1]
    cuts = np.arange(1, units)
    begins = np.array([search.triangle.at(0, int(cut)) for cut in cuts])
    ends = np.array([search.triangle.at(int(cut), units) for cut in cuts])
    total = before[begins] + after[ends]
    return [int(cuts[at]) for at in np.argsort(total)[:TRIED] if np.isfinite(total[at])]


def _layout(search: LayoutSearch, batch: BatchTerms, cut: int, *, copies_first: bool) -> Layout:
    units, count = search.triangle.units, len(search.devices)
    devices, stages = tuple(range(count)), []
    for first, last, sharded in ((0, cut, not copies_first), (cut, units, copies_first)):
        shards = count if sharded else 1
        ways = choose_ways(search.costs, first, last, shards, search.shard_wire(shards), "fast", search.links)
        stages.append(Stage(first, last, devices, shards, False, ways))
    names = tuple(unit.name for unit in search.costs.units)
    return Layout(names, tuple(stages), batch.micro_batches, batch.order)
