"""The search finds what brute force finds."""

import itertools
import math
import random

import pytest
from random_costs import random_model, unevenly_wired, wired

from gradtide.schedule.step.choice.figures import figures_of
from gradtide.schedule.step.choice.states import UnitLinks
from gradtide.schedule.step.choice.ways import choose_ways
from gradtide.schedule.step.choice.wires import StepDevices
from gradtide.schedule.step.layout import Stage
from gradtide.schedule.step.score import BatchTerms, alive, combine, score, stage_bytes, stage_terms
from gradtide.schedule.step.search import LayoutSearch, SplitWishes


class BruteForce:
    """Every chain of stages, each with every number of copies and shards, cut in both ways, activations kept or not."""

    def __init__(self, costs, devices, wishes):
        self.costs, self.devices, self.wishes = costs, devices, wishes
        self.links = UnitLinks(costs)
        self.units = tuple(unit.name for unit in costs.units)
        self.figures = {}
        self.shard_wire = LayoutSearch(costs, devices, wishes).shard_wire

    def stages(self, first, offset):
        """The stages that may come next: (Stage, copies, shards)."""
        for last in range(first + 1, len(self.units) + 1):
            for size in range(1, len(self.devices) - offset + 1):
                for shards in (count for count in range(1, size + 1) if size % count == 0):
                    for prefer in ("fast", "small") if shards > 1 else ("fast",):
                        wire = self.shard_wire(shards)
                        ways = choose_ways(self.costs, first, last, shards, wire, prefer, self.links)
                        for again in (False, True):
                            yield Stage(first, last, tuple(range(offset, offset + size)), shards, again, ways)

    def chains(self, first, offset):
        key = (first, offset)
        if key not in self.figures:
            self.figures[key] = list(self._chains(first, offset))
        return self.figures[key]

    def _chains(self, first, offset):
        for stage in self.stages(first, offset):
            if stage.last == len(self.units):
                yield (stage,)
            else:
                for rest in self.chains(stage.last, offset + len(stage.devices)):
                    yield (stage, *rest)

    def best(self):
        seconds = {}
        terms = {}
        for order, count in itertools.product(self.wishes.orders, self.wishes.counts(self.costs.samples)):
            batch = BatchTerms(self.costs.samples, count, order, self.costs.overheads)
            best = math.inf
            for chain in self.chains(0, 0):
                found = []
                for depth, stage in zip(range(len(chain), 0, -1), chain, strict=True):
                    key = (stage, batch)
                    if key not in terms:
                        figures = figures_of(self.links, stage)
                        place = self.devices.place(stage.devices[0], stage.copies, stage.shards)
                        once, later, _ = stage_terms(
                            figures, place, batch, self.devices.narrowest, recompute=stage.recompute
                        )
                        share = batch.largest_share(stage.copies)
                        need = [
                            float(
                                stage_bytes(
                                    figures,
                                    alive(order, count, d, len(self.devices)),
                                    share,
                                    stage.copies,
                                    recompute=stage.recompute,
                                )
                            )
                            for d in range(1, len(self.devices) + 1)
                        ]
                        terms[key] = (float(once), float(later), need, place.memory_bytes)
                    once, later, need, limit = terms[key]
                    if need[depth - 1] > limit:
                        break
                    found.append((once, later))
                else:
                    best = min(best, combine(found, range(len(found))))
            seconds[order, count] = best
        return seconds


def agree(costs, devices, wishes):
    expected = BruteForce(costs, devices, wishes).best()
    found = LayoutSearch(costs, devices, wishes).best_of_each()
    least = min(expected.values())
    if least == math.inf:
        assert found == []
        return
    assert found[0].seconds == pytest.approx(least, rel=1e-8)
    for one in found:
        again = score(one.layout, costs, devices)
        assert again.seconds == pytest.approx(one.seconds, rel=1e-9)
        assert again.fits(devices.memory_bytes)


@pytest.mark.parametrize("seed", range(12))
def test_the_search_equals_brute_force(seed):
    draw = random.Random(seed)
    costs = random_model(
        seed, draw.randint(1, 4), skips=seed % 3 == 1, tied=seed % 3 == 2, samples=draw.choice([7, 32])
    )
    count = draw.randint(1, 3)
    topology = wired(count) if seed % 2 else unevenly_wired(seed, count)
    memory = draw.choice([math.inf, 300_000.0, 150_000.0]) if seed % 3 < 2 else math.inf
    speeds = [draw.choice([1.0, 0.5]) for _ in range(count)] if seed % 4 == 3 else ()
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    agree(costs, StepDevices(topology, count, memory, speeds), SplitWishes((order,), (1, 2, 4)))


def agree_on_eight_units_and_four_devices(seed):
    draw = random.Random(seed)
    costs = random_model(seed, 8, skips=seed % 3 == 1, tied=seed % 3 == 2)
    topology = wired(4, draw.choice([1e7, 1e8, 1e9])) if seed % 2 else unevenly_wired(seed, 4)
    memory = draw.choice([math.inf, 400_000.0, 200_000.0, (400_000.0, 100_000.0, 300_000.0, 200_000.0)])
    speeds = [draw.choice([1.0, 0.5]) for _ in range(4)] if seed % 4 == 3 else ()
    agree(costs, StepDevices(topology, 4, memory, speeds), SplitWishes(("1f1b",), (1, 4, 16)))


@pytest.mark.parametrize("seed", [100, 101])
def test_eight_units_on_four_devices(seed):
    agree_on_eight_units_and_four_devices(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(102, 162))
def test_many_models_of_eight_units_on_four_devices(seed):
    agree_on_eight_units_and_four_devices(seed)
