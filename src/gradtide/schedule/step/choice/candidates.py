"""Layouts to compare the best with: one device, copies alone, shards alone, layers alone; and interleaved ones."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gradtide.schedule.step.choice.ways import Preference, choose_ways
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.score import BatchTerms, LayoutScore, score, stage_terms
from gradtide.schedule.step.search import Found, LayoutSearch

__all__ = ["even_cuts", "interleaved", "plain_layouts"]

TURNS = (2, 3, 4)  # stages a device, interleaved


def plain_layouts(search: LayoutSearch) -> Iterator[tuple[str, Found | None, float]]:
    """(name, the best such layout or None, the fewest bytes a device that one needs) of those that do one thing."""
    count = len(search.devices)
    yield "one device", *_best_of(search, lambda batch: _single(search, batch, 1, 1))
    if count > 1:
        yield "copies alone", *_best_of(search, lambda batch: _single(search, batch, count, 1))
        yield "shards alone", *_best_of(search, lambda batch: _single(search, batch, 1, count))
        wishes = replace(search.wishes, copies=False, shards=False)
        layers = LayoutSearch(search.costs, search.devices, wishes, search.samples).best_of_each()
        yield "layers alone", next(iter(layers), None), math.inf


def _best_of(search: LayoutSearch, make: Callable[[BatchTerms], Iterator[Layout]]) -> tuple[Found | None, float]:
    best, fewest = None, math.inf
    order = search.wishes.orders[0] if search.wishes.orders[0] != "interleaved" else "1f1b"
    for count in search.wishes.counts(search.samples):
        for layout in make(BatchTerms(search.samples, count, order)):
            found = _score(search, layout)
            fewest = min(fewest, max(found.device_bytes))
            if found.fits(search.devices.memory_bytes) and (best is None or found.seconds < best.seconds * (1 - 1e-9)):
                best = Found(layout, found.seconds)
    return best, fewest


def _score(search: LayoutSearch, layout: Layout) -> LayoutScore:
    return score(layout, search.costs, search.devices, search.samples, search.links)


def _single(search: LayoutSearch, batch: BatchTerms, copies: int, shards: int) -> Iterator[Layout]:
    names = tuple(unit.name for unit in search.costs.units)
    preferences: tuple[Preference, ...] = ("fast", "small") if shards > 1 else ("fast",)
    for preference in preferences:
        wire = search.shard_wire(shards)
        ways = choose_ways(search.costs, 0, len(names), shards, wire, preference, search.links)
        for recompute in (False, True):
            stage = Stage(0, len(names), tuple(range(copies * shards)), shards, recompute, ways)
            yield Layout(names, (stage,), batch.micro_batches, batch.order)


def interleaved(search: LayoutSearch) -> list[Found]:
    """For each number of groups of devices, all alike, and stages a group: units in stages as even as can be."""
    found = list[Found]()
    for count in search.wishes.counts(search.samples):
        batch = BatchTerms(search.samples, count, "interleaved", search.costs.overheads)
        for copies, shards in search.pairs:
            for groups in range(2, len(search.devices) // (copies * shards) + 1):
                for turns in TURNS:
                    if count % groups == 0 and groups * turns <= len(search.costs.units):
                        found += _dealt(search, batch, copies, shards, groups, groups * turns)
    return sorted(found, key=lambda one: one.seconds)


def _dealt(
    search: LayoutSearch, batch: BatchTerms, copies: int, shards: int, groups: int, stages: int
) -> Iterator[Found]:
    size, cuts = copies * shards, even_cuts(search, batch, copies, shards, stages)
    wire, names = search.shard_wire(shards), tuple(unit.name for unit in search.costs.units)
    for recompute in (False, True):
        made = []
        for number, (first, last) in enumerate(pairwise(cuts)):
            group = number % groups
            ways = choose_ways(search.costs, first, last, shards, wire, "fast", search.links)
            made.append(Stage(first, last, tuple(range(group * size, (group + 1) * size)), shards, recompute, ways))
        layout = Layout(names, tuple(made), batch.micro_batches, "interleaved")
        one = _score(search, layout)
        if one.fits(search.devices.memory_bytes):
            yield Found(layout, one.seconds)
            return


def even_cuts(search: LayoutSearch, batch: BatchTerms, copies: int, shards: int, stages: int) -> list[int]:
    """Where stages begin and end so that the slowest is as fast as can be."""
    units = search.triangle.units
    place = search.devices.place(0, copies, shards)
    busy = stage_terms(search.figures_for(shards), place, batch, search.devices.narrowest, recompute=False)[2]
    seconds = np.full((units + 1, units + 1), np.inf)
    rows, columns = np.triu_indices(units)
    seconds[rows, columns + 1] = busy
    slowest, came = np.where(np.arange(units + 1) == 0, 0.0, np.inf), []
    for _ in range(stages):
        worse = np.maximum(slowest[:, None], seconds)
        came.append(worse.argmin(0))
        slowest = worse.min(0)
    cuts = [units]
    for choice in reversed(came):
        cuts.append(int(choice[cuts[-1]]))
    return cuts[::-1]
