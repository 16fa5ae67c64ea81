"""Every way to lay a model's units out over devices, by closed-form score: the best for each number of micro-batches.

Stages are units that follow each other; each takes copies x shards of the devices in their order. With up to 16 devices
every size of stage and every such product is looked at; with more, sizes that are powers of two (and all devices), and
powers of two of shards. Micro-batches are powers of two, up to 64, unless named. A stage's units are cut in the fastest
way, or the smallest; activations are computed again where they don't fit otherwise.

The score is a sum over stages plus the largest of their rests (score.py). For a limit on the largest, the least sum is
a shortest path (choice/sweep.py); limits are halved until no layout can be better by more than the tolerance: 1e-9, or
0.5 % with more than 16 devices. Where memory binds: with up to 16 devices, layouts of more than 8 stages must fit as if
they were as deep as there are units and devices; with more, all stages as if they were as deep as the deepest is found
to be. Those of zero-bubble always must.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.errors import ConfigError
from gradtide.schedule.step.choice.figures import StageFigures
from gradtide.schedule.step.choice.intervals import Triangle, figures_of_all
from gradtide.schedule.step.choice.states import UnitLinks
from gradtide.schedule.step.choice.sweep import ChainStage, Sweep
from gradtide.schedule.step.choice.ways import Preference, ShardWire, choose_ways
from gradtide.schedule.step.choice.wires import StagePlace, StepDevices
from gradtide.schedule.step.costs import ModelCosts
from gradtide.schedule.step.layout import Layout, Order, Stage
from gradtide.schedule.step.score import (
    BatchTerms,
    StageWork,
    afterwards,
    alive,
    least_of_stage,
    memory_terms,
    score,
    work_terms,
)

__all__ = ["DEEPEST", "Found", "LayoutSearch", "SplitWishes", "StageOption"]

ALL_SIZES = 16  # devices up to which every size of a stage is looked at
DEEPEST = 8  # stages up to which memory is exact where it binds
WORTH = 1.25, 1.02  # what is worse than the best by more is not refined: with few devices, and with more
ROUGHLY = 5e-3  # the tolerance with more devices
ROUGHEST = 0.1  # where it is not known yet how deep stages must fit

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SplitWishes:
    """What a layout may be."""

    orders: tuple[Order, ...] = ("1f1b",)
    micro_batches: tuple[int, ...] = ()  # (): powers of two
    copies: bool = True  # whether stages may have several
    shards: bool = True

    def counts(self, samples: int) -> tuple[int, ...]:
        if self.micro_batches:
            for count in self.micro_batches:
                if not 1 <= count <= samples:
                    raise ConfigError(f"{samples} samples make 1 to {samples} micro-batches, not {count}")
            return self.micro_batches
        return tuple(2**power for power in range(7) if 2**power <= samples)


@dataclass(frozen=True, slots=True)
class Found:
    """A layout, and the closed form of its step's time."""

    layout: Layout
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class StageOption:
    """One way to do a stage: on so many devices, so cut."""

    row: int  # of a size and the devices it may be on
    place: StagePlace
    work: StageWork
    after: Array  # what follows the last micro-batch
    preference: Preference

    @property
    def figures(self) -> StageFigures:
        return self.work.figures


class LayoutSearch:
    """The layouts of one model on some devices."""

    def __init__(
        self, costs: ModelCosts, devices: StepDevices, wishes: SplitWishes | None = None, samples: int | None = None
    ) -> None:
        self.costs, self.devices, self.wishes = costs, devices, wishes or SplitWishes()
        self.samples = costs.samples if samples is None else samples
        if not costs.units:
            raise ConfigError("the model has no units to split")
        self.links = UnitLinks(costs)
        self.triangle = Triangle(len(costs.units))
        self.bound_by_memory = min(devices.memory_bytes) < math.inf
        self.pairs = _pairs(len(devices), self.wishes)
        self._shards = sorted({shards for _, shards in self.pairs})
        self._figures = self._all_figures()
        self._work = {key: StageWork.of(figures, costs.overheads) for key, figures in self._figures.items()}
        self._afters: dict[object, Array] = {}
        self._terms: _Terms | None = None
        self.sizes = sorted({copies * shards for copies, shards in self.pairs})
        self.few = len(devices) <= ALL_SIZES
        self._rows, self.options = self._all_options()
        self.sweep = Sweep(self.triangle, self.sizes, self._rows)
        self.tolerance, self.worth = (1e-9, WORTH[0]) if self.few else (ROUGHLY, WORTH[1])

    def _all_figures(self) -> dict[tuple[int, Preference], StageFigures]:
        asked: list[tuple[int, Preference]] = [(shards, "fast") for shards in self._shards]
        asked += [(shards, "small") for shards in self._shards if shards > 1]
        wires = {shards: self.shard_wire(shards) for shards in self._shards}
        found = figures_of_all(self.links, asked, [wires[shards] for shards, _ in asked])
        return dict(zip(asked, found, strict=True))

    def shard_wire(self, shards: int) -> ShardWire:
        """What ways are weighed with: an exchange is also work, and there is one task more."""
        wire, own = self.devices.shard_wire(shards), self.costs.overheads
        s_per_byte = 1 / wire.bytes_per_s + own.exchange.per_byte_s
        latency_s = wire.latency_s + own.exchange.fixed_s + own.task_s
        return ShardWire(1 / s_per_byte if s_per_byte else math.inf, latency_s)

    def best_of_each(self) -> list[Found]:
        """The best layout of each order and number of micro-batches that has any, best first.

        The first is the best of all; others that are far from it may not be the best of theirs.
        """
        found, best = list[Found](), math.inf
        for order in self.wishes.orders:
            counts = self.wishes.counts(self.samples)
            for count in sorted(counts, reverse=self.bound_by_memory):  # those first that are likely to be good
                batch = BatchTerms(self.samples, count, order, self.costs.overheads)
                one = self._best(batch, best)
                if one:
                    found.append(one)
                    best = min(best, one.seconds)
        return sorted(found, key=lambda one: (float(f"{one.seconds:.9g}"), one.layout.micro_batches))

    def _best(self, batch: BatchTerms, known: float) -> Found | None:
        """The best of one number of micro-batches."""
        needs = self._needs(batch)
        if self.few or len(needs) == 1:
            return self._refined(batch, needs, known)
        need = min(needs[-1], DEEPEST)
        while True:  # as if every stage were as deep as that, until what is found does fit
            found = self._refined(batch, [need], known, self.tolerance if need == needs[-1] else ROUGHEST)
            if found is None or need == needs[-1]:
                return found
            if self.fits(found.layout):
                found = self._refined(batch, [need], known) or found
                if self.fits(found.layout):
                    return found
            need = min(needs[-1], max(2 * need, len(found.layout.stages)))

    def fits(self, layout: Layout) -> bool:
        return score(layout, self.costs, self.devices, self.samples, self.links).fits(self.devices.memory_bytes)

    def _refined(
        self, batch: BatchTerms, needs: list[int], known: float, tolerance: float | None = None
    ) -> Found | None:
        """The same, refined only where it may be near what is known; `needs` are micro-batches that must fit, by
        layers of depth."""
        tolerance = self.tolerance if tolerance is None else tolerance
        costs = self._costs(batch, needs)
        taken = self._under(costs, math.inf) if costs else None
        if costs is None or taken is None:
            return None
        low = max(float(costs.least_rests.min()), self._least_rest(batch))
        # Limits to look at: rests from here to below there, and the least sum of those; the most hopeful first.
        ranges = [(taken.total + low, low, taken.largest, taken.total)]
        while ranges and ranges[0][0] < min(taken.seconds, known * self.worth) * (1 - tolerance):
            _, low, high, total = heapq.heappop(ranges)
            middle = low + (high - low) / 2
            middle = middle if middle < high else low
            chain = self._under(costs, middle)
            above = math.nextafter(middle, math.inf)
            if above < high:
                heapq.heappush(ranges, (total + above, above, high, total))
            if chain is not None:
                taken = min(taken, chain, key=lambda one: one.seconds)
                if low < chain.largest:
                    heapq.heappush(ranges, (chain.total + low, low, chain.largest, chain.total))
        return Found(self._layout(taken, costs, batch), taken.seconds)

    def _least_rest(self, batch: BatchTerms) -> float:
        """No layout's slowest stage has less left: all devices together compute every micro-batch but one."""
        whole = self._figures[1, "fast"]
        all_units = self.triangle.at(0, self.triangle.units)
        a_sample = float(whole.forward_sample_s[all_units] + whole.backward_sample_s[all_units])
        share = self.samples / batch.micro_batches
        return (batch.micro_batches - 1) * a_sample * share / sum(self.devices.speeds) * (1 - 1e-9)

    def _under(self, costs: "_Costs", limit: float) -> "_Chain | None":
        """The least sum of all chains whose stages' rests are within the limit."""
        some = np.flatnonzero(costs.least_rests <= limit)  # a low limit leaves but the short ones of all stages
        if len(some) == self.triangle.size and math.isinf(limit):
            rows = [np.minimum.reduceat(layer, costs.begins) for layer in costs.layers]
        else:
            allowed = costs.rests[:, some] <= limit
            rows = [np.full((len(costs.begins), self.triangle.size), np.inf) for _ in costs.layers]
            for row, layer in zip(rows, costs.layers, strict=True):
                row[:, some] = np.minimum.reduceat(np.where(allowed, layer[:, some], np.inf), costs.begins)
        total, stages = self.sweep.best(rows)
        if not stages:
            return None
        picks = [self._pick(one, limit, costs) for one in stages]
        at = [self.triangle.at(one.first, one.last) for one in stages]
        largest = max(float(costs.rests[pick, place]) for pick, place in zip(picks, at, strict=True))
        return _Chain(stages, picks, total, largest)

    def _pick(self, stage: ChainStage, limit: float, costs: "_Costs") -> int:
        """The option that a stage of the chain was found with."""
        row = int(self._rows[stage.size, stage.offset])
        begin = int(costs.begins[row])
        end = int(costs.begins[row + 1]) if row + 1 < len(costs.begins) else len(costs.options)
        at = self.triangle.at(stage.first, stage.last)
        column = costs.layers[stage.layer - 1][begin:end, at]
        return begin + int(np.where(costs.rests[begin:end, at] <= limit, column, np.inf).argmin())

    def figures_for(self, shards: int) -> StageFigures:
        """Of all stages, cut in the fastest way."""
        return self._figures[shards, "fast"]

    def least_of_rows(self, of_options: Sequence[Array]) -> Array:
        """Of something that each option has for every stage, the least that any option of a row of the sweep has."""
        begins = np.flatnonzero(np.diff([option.row for option in self.options], prepend=-1)).tolist()
        ends = [*begins[1:], len(self.options)]
        return np.stack([np.min(np.stack(of_options[a:b]), axis=0) for a, b in zip(begins, ends, strict=True)])

    def of_row(self, rows: Array, stage: ChainStage) -> float:
        return float(rows[self._rows[stage.size, stage.offset], self.triangle.at(stage.first, stage.last)])

    def _costs(self, batch: BatchTerms, needs: list[int]) -> "_Costs | None":
        """Both terms of every option for every stage of the model, where it fits by layers of depth."""
        terms = self._terms_of(batch)
        fits = terms.most_alive >= needs[0]
        if not fits.any():
            return None
        if len(needs) > 1 and (~fits | (terms.most_alive >= needs[-1])).all():
            needs = needs[:1]  # whatever fits at all fits however many stages follow
        begins = np.flatnonzero(np.diff([option.row for option, _ in terms.options], prepend=-1))
        layers = [np.where(terms.most_alive >= need, terms.firsts, np.inf) for need in needs]
        least = np.where(fits, terms.rests, np.inf).min(0)
        return _Costs(terms.options, layers, terms.rests, least, begins)

    def _terms_of(self, batch: BatchTerms) -> "_Terms":
        """Kept until another batch is asked for: how deep stages must fit changes more often."""
        if self._terms is None or self._terms.batch != batch:
            self._terms = None
            deepest, most = self._needs(batch)[-1], 2 * len(self.options)
            firsts, rests, alive_most = (np.empty((most, self.triangle.size)) for _ in range(3))
            taken = list[tuple[StageOption, bool]]()
            for option in self.options:
                for recompute in (False, True):
                    at = len(taken)
                    alive_most[at] = self._most_alive(option, batch, recompute=recompute)
                    work = work_terms(option.work, option.after, option.place, batch, recompute=recompute)
                    firsts[at], rests[at] = work[:2]
                    taken.append((option, recompute))
                    if alive_most[at].min() >= deepest:  # nothing is gained by computing activations again
                        break
            count = len(taken)
            self._terms = _Terms(batch, taken, firsts[:count], rests[:count], alive_most[:count])
        return self._terms

    def _needs(self, batch: BatchTerms) -> list[int]:
        """Micro-batches that must fit, for the last stage, the one before it, and so on."""
        most = min(self.triangle.units, len(self.devices))
        if batch.order == "gpipe" or not self.bound_by_memory:
            return [batch.micro_batches]
        deepest = alive(batch.order, batch.micro_batches, most, most)
        if batch.order == "zero-bubble":
            return [deepest]
        return [*range(1, min(deepest, DEEPEST)), deepest]

    def _most_alive(self, option: StageOption, batch: BatchTerms, *, recompute: bool) -> Array:
        """How many micro-batches' activations fit beside all else; infinite where there is no limit."""
        place = option.place
        if not math.isfinite(place.memory_bytes):
            return np.full(self.triangle.size, np.inf)
        share = batch.largest_share(place.copies)
        static, each = memory_terms(option.figures, share, recompute=recompute)
        room = place.memory_bytes - static
        room = np.where(least_of_stage(option.figures, share, place.copies) > place.memory_bytes, -1.0, room)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(room < 0, -1.0, np.where(each > 0, np.floor(room / each * (1 + 1e-12)), np.inf))

    def _layout(self, chain: "_Chain", costs: "_Costs", batch: BatchTerms) -> Layout:
        stages = []
        for one, pick in zip(chain.stages, chain.picks, strict=True):
            option, recompute = costs.options[pick]
            shards = option.place.shards
            wire = self.shard_wire(shards)
            ways = choose_ways(self.costs, one.first, one.last, shards, wire, option.preference, self.links)
            devices = tuple(range(one.offset, one.offset + self.sizes[one.size]))
            stages.append(Stage(one.first, one.last, devices, shards, recompute, ways))
        names = tuple(unit.name for unit in self.costs.units)
        return Layout(names, tuple(stages), batch.micro_batches, batch.order)

    def _all_options(self) -> tuple[npt.NDArray[np.int64], list[StageOption]]:
        """For each size and first device a row of costs, shared by those where all is alike; and each row's options."""
        count = len(self.devices)
        rows = np.full((len(self.sizes), count + 1), -1, np.int64)
        options, number = list[StageOption](), 0
        for at, size in enumerate(self.sizes):
            pairs = [pair for pair in self.pairs if pair[0] * pair[1] == size]
            alike: dict[tuple[StagePlace, ...], int] = {}
            for offset in range(count - size + 1):
                places = tuple(self.devices.place(offset, *pair) for pair in pairs)
                if places not in alike:
                    alike[places] = number
                    options += [one for place in places for one in self._options_of(number, place)]
                    number += 1
                rows[at, offset] = alike[places]
        return rows, options

    def _options_of(self, row: int, place: StagePlace) -> Iterator[StageOption]:
        fast = self._figures[place.shards, "fast"]
        yield self._option(row, place, "fast")
        if place.shards > 1 and (self.bound_by_memory or self.few):
            small = self._figures[place.shards, "small"]
            if not np.array_equal(small.parameter_bytes, fast.parameter_bytes) or not np.array_equal(
                small.saved_bytes, fast.saved_bytes
            ):
                yield self._option(row, place, "small")

    def _option(self, row: int, place: StagePlace, preference: Preference) -> StageOption:
        work = self._work[place.shards, preference]
        key = place.copies, place.shards, place.speed, place.sum, preference
        if key not in self._afters:
            self._afters[key] = afterwards(work.figures, place, self.devices.narrowest, self.costs.overheads)
        return StageOption(row, place, work, self._afters[key], preference)


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """Of one number of micro-batches, whether they fit or not: a row an option, a column a stage."""

    batch: BatchTerms
    options: list[tuple[StageOption, bool]]
    firsts: Array
    rests: Array
    most_alive: Array  # micro-batches that fit


@dataclass(frozen=True, slots=True, eq=False)
class _Costs:
    """Of one number of micro-batches: a row an option (with activations kept or computed again), a column a stage."""

    options: list[tuple[StageOption, bool]]
    layers: list[Array]  # the parts of the sum; infinite where it does not fit, by stages that follow
    rests: Array
    least_rests: Array  # of each stage, in the option that has the least; infinite where none fits
    begins: npt.NDArray[np.int64]  # of the options of each row of the sweep


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    stages: list[ChainStage]
    picks: list[int]
    total: float  # of the sum
    largest: float  # of the rests

    @property
    def seconds(self) -> float:
        return self.total + self.largest


def _pairs(devices: int, wishes: SplitWishes) -> list[tuple[int, int]]:
    """Copies and shards that a stage may have."""
    if devices <= ALL_SIZES:
        sizes, shards = list(range(1, devices + 1)), list(range(1, devices + 1))
    else:
        shards = [2**power for power in range(devices.bit_length()) if 2**power <= devices]
        sizes = sorted({*shards, devices})
    found = [(size // count, count) for size in sizes for count in shards if size % count == 0]
    if devices not in shards:
        found.append((1, devices))
    return [(c, k) for c, k in dict.fromkeys(found) if (wishes.copies or c == 1) and (wishes.shards or k == 1)]
