"""Where the exchanges of a stage go: its units in segments, each with what the shards exchange before it.

A value has its plain name where it is whole on every shard, and so is its gradient. Besides that there may be

    value/sliced    a slice on each shard
    value/partial   on each shard a part of a sum
    value/spread    the whole, whose gradient has to be added up
    value/slice...  slices of another length
    value/halo...   slices with some rows of their neighbours
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.local import ShardExchange
from gradtide.parallel.split.layers.elementwise import Elementwise
from gradtide.parallel.split.layers.registry import LayerPart, LayerWay, Slices, layer_ways
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.costs import CutWay
from gradtide.schedule.step.layout import Stage
from gradtide.schedule.step.shape import ExchangeKind

__all__ = ["Chosen", "ShardedSegment", "ShardedUnit", "StageWalk", "place_stage", "values_with_gradient"]

Form = Literal["whole", "partial"] | Slices  # of a value, as its unit makes it
Chosen = Mapping[str, tuple[CutWay, LayerWay]]  # the way of each unit that is cut


@dataclass(frozen=True, slots=True, eq=False)
class ShardedUnit:
    """A unit with the way it is cut (None: whole), and its values' names on a shard."""

    unit: Unit
    way: LayerWay | None
    given: Slices | None  # slices that it reads
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(slots=True, eq=False)
class ShardedSegment:
    """Units that run one after the other, and the exchanges before them."""

    before: list[ShardExchange] = field(default_factory=list)
    units: list[ShardedUnit] = field(default_factory=list)


def values_with_gradient(chain: Chain) -> set[str]:
    """The values that depend on a trained parameter: the others need no gradient."""
    found: set[str] = set()
    for unit in chain.units:
        if found.intersection(unit.reads) or any(p.requires_grad for p in unit.module.parameters()):
            found.update(unit.writes)
    return found


def features_of(value: str, chain: Chain, depth: int = 20) -> int | None:
    """How many features a value has, if it is read, perhaps through layers that keep them, by a layer that says it."""
    for unit in chain.units:
        if value in unit.reads and depth:
            if isinstance(unit.module, nn.Linear):
                return unit.module.in_features
            if any(isinstance(kind, Elementwise) for _, kind in layer_ways(unit.module).values()):
                found = features_of(unit.writes[0], chain, depth - 1)
                if found is not None:
                    return found
    return None


def _told(given: Slices | None) -> str:
    return "not sliced" if given is None else f"in slices of {given.sizes} along dimension {given.dim}"


def place_stage(chain: Chain, stage: Stage, chosen: Chosen) -> tuple[list[ShardedSegment], list[ShardExchange]]:
    """The stage's segments, and the exchanges that close it. They are the same on every shard."""
    walk = StageWalk(chain, stage, chosen)
    for unit in chain.units[stage.first : stage.last]:
        walk.place(unit)
    return walk.segments, walk.close()


class StageWalk:
    """The units of a stage taken one after the other, as they are chosen to be cut."""

    def __init__(self, chain: Chain, stage: Stage, chosen: Chosen) -> None:
        self.chain = chain
        self.shards = stage.shards
        self.chosen = chosen
        self.units = chain.units[stage.first : stage.last]
        self.leaving = {value for unit in chain.units[stage.last :] for value in unit.reads} | set(chain.outputs)
        self.trained = values_with_gradient(chain)
        self.segments = [ShardedSegment()]
        self.forms: dict[str, Form] = {}
        self.made: dict[str, int] = {}  # the segment that makes each name; what an exchange makes counts as before it

    def place(self, unit: Unit) -> None:
        cut = self.chosen.get(unit.name)
        given = None if cut is None else self.given(unit, *cut)
        if cut is None or (cut[0].needs == "any" and given is None):
            self.add(unit, None, None, [self.whole(value) for value in unit.reads], "whole")
            return
        facts, way = cut
        reads = [self.wanted(unit, value, facts, way, given) for value in unit.reads]
        self.add(unit, way, given, reads, self.made_of(unit, facts, way, given))

    def part(self, unit: Unit, given: Slices | None) -> LayerPart:
        return LayerPart(0, self.shards, given, features_of(unit.writes[0], self.chain))

    def slices(self, unit: Unit) -> Slices | None:
        """The slices that all it reads are in."""
        forms = {self.forms.get(value, "whole") for value in unit.reads}
        form = forms.pop() if len(forms) == 1 else "whole"
        return form if isinstance(form, Slices) else None

    def given(self, unit: Unit, facts: CutWay, way: LayerWay) -> Slices | None:
        """The slices that the unit reads; None: it has to read the whole."""
        if facts.needs not in ("sliced", "any"):
            return None
        given = self.slices(unit)
        if facts.needs == "any":
            follows = given is not None and way.writes(unit.module, self.part(unit, given)) is not None
            return given if follows else None
        found = way.reads(unit.module, self.part(unit, given))
        if found is None:
            raise ConfigError(
                f"{unit.name} ({type(unit.module).__name__}) can't be cut by {facts.name} here: "
                f"what it reads is {_told(given)}; leave it whole"
            )
        return found

    def made_of(self, unit: Unit, facts: CutWay, way: LayerWay, given: Slices | None) -> Form:
        if facts.gives == "partial" or facts.gives == "whole":
            return facts.gives
        made = way.writes(unit.module, self.part(unit, given))
        assert made is not None
        return made

    def wanted(self, unit: Unit, value: str, facts: CutWay, way: LayerWay, given: Slices | None) -> str:
        if given is not None:
            name = self.sliced(value, given)
            rows = way.halo(unit.module)
            return self.exchange("halo", value, name, f"{value}/halo{rows}", given, rows) if rows else name
        return self.spread(value) if facts.gradient == "partial" else self.whole(value)

    def add(self, unit: Unit, way: LayerWay | None, given: Slices | None, reads: list[str], gives: Form) -> None:
        suffix = "" if gives == "whole" else "/partial" if gives == "partial" else "/sliced"
        writes = tuple(f"{value}{suffix}" for value in unit.writes)
        self.segments[-1].units.append(ShardedUnit(unit, way, given, tuple(reads), writes))
        for value, name in zip(unit.writes, writes, strict=True):
            self.forms[value] = gives
            self.made[name] = len(self.segments) - 1

    def whole(self, value: str) -> str:
        form = self.forms.get(value, "whole")
        if form == "whole" or value in self.made:
            return value
        if form == "partial":
            return self.exchange("sum", value, f"{value}/partial", value)
        return self.exchange("collect", value, f"{value}/sliced", value, form)

    def spread(self, value: str) -> str:
        form = self.forms.get(value, "whole")
        if value not in self.trained:
            return self.whole(value)
        if isinstance(form, Slices) and value not in self.made and not self.needed_whole(value):
            return self.exchange("gather", value, f"{value}/sliced", f"{value}/spread", form)
        return self.exchange("spread", value, self.whole(value), f"{value}/spread")

    def sliced(self, value: str, slices: Slices) -> str:
        if self.forms.get(value) == slices:
            return f"{value}/sliced"
        name = f"{value}/slice{slices.dim}:{'-'.join(map(str, slices.sizes))}"
        return name if name in self.made else self.exchange("slice", value, self.whole(value), name, slices)

    def needed_whole(self, value: str) -> bool:
        """Whether anybody reads it as it is, whole: then it is sent once, and that is spread."""
        readers = [unit for unit in self.units if value in unit.reads]
        return value in self.leaving or any(unit.name not in self.chosen for unit in readers)

    def exchange(
        self, kind: ExchangeKind, value: str, source: str, gives: str, slices: Slices | None = None, halo: int = 0
    ) -> str:
        """Puts an exchange as early as the value is there; a new segment begins if it is made in the last one."""
        if gives in self.made:
            return gives
        if self.made.get(source, -1) == len(self.segments) - 1:
            self.segments.append(ShardedSegment())
        self.segments[-1].before.append(self.described(kind, value, source, gives, slices, halo))
        self.made[gives] = len(self.segments) - 2
        return gives

    def described(
        self, kind: ExchangeKind, value: str, source: str, gives: str, slices: Slices | None, halo: int = 0
    ) -> ShardExchange:
        found = ShardExchange(kind, source, gives, halo=halo, has_gradient=value in self.trained)
        return found if slices is None else replace(found, dim=slices.dim, sizes=slices.sizes)

    def close(self) -> list[ShardExchange]:
        after = []
        for value, form in self.forms.items():
            if value in self.leaving and value not in self.made:
                partial = form == "partial"
                name = f"{value}/partial" if partial else f"{value}/sliced"
                slices = form if isinstance(form, Slices) else None
                after.append(self.described("sum" if partial else "collect", value, name, value, slices))
        return after
