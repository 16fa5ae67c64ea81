"""The shape of a step of a model as it is cut: what build_step makes the step of."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.even_share import even_share
from gradtide.parallel.split.cut.local import ShardExchange
from gradtide.parallel.split.cut.placing import place_stage, values_with_gradient
from gradtide.parallel.split.cut.ways import chosen_ways
from gradtide.parallel.split.units import Chain
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.shape import Crossing, ExchangeShape, SegmentShape, StageShape, StepShape, Tie

__all__ = ["ChainShape", "finest_parts", "first_stages"]


@dataclass(frozen=True, slots=True, eq=False)
class ChainShape:
    """What is the same for batches of all sizes."""

    layout: Layout
    stages: tuple[StageShape, ...]
    crossings: tuple[Crossing, ...]
    ties: tuple[Tie, ...]

    @classmethod
    def of(cls, chain: Chain, layout: Layout) -> "ChainShape":
        ties = _ties(chain, layout)
        return cls(layout, _stages(chain, layout), _crossings(chain, layout), ties)

    def step(self, samples: int, *, clip: bool) -> StepShape:
        """The shape of a step on a batch of so many samples."""
        count = self.layout.micro_batches
        spans = [even_share(samples, micro, count) for micro in range(count)]
        sizes = tuple(end - begin for begin, end in spans)
        return StepShape(self.stages, self.crossings, sizes, self.layout.order, self.ties, clip)


def _stages(chain: Chain, layout: Layout) -> tuple[StageShape, ...]:
    found, trained = [], False
    for stage in layout.stages:
        segments, after = place_stage(chain, stage, chosen_ways(chain, stage))
        shapes = tuple(SegmentShape(before=_exchanges(segment.before)) for segment in segments)
        gradients = sum(_trained(chain, stage).values())
        trained = trained or gradients > 0
        found.append(
            StageShape(
                stage.devices,
                stage.shards,
                shapes,
                _exchanges(after),
                gradients,
                gradients,
                recompute=stage.recompute,
                trained=trained,
            )
        )
    return tuple(found)


def _exchanges(exchanges: Sequence[ShardExchange]) -> tuple[ExchangeShape, ...]:
    """Whether anything is sent is all that counts here, not how much."""
    return tuple(ExchangeShape(one.kind, one.value, 1.0, float(one.has_gradient)) for one in exchanges)


def _trained(chain: Chain, stage: Stage) -> dict[str, int]:
    """The bytes of each parameter that is trained."""
    found: dict[str, int] = {}
    for unit in chain.units[stage.first : stage.last]:
        for name, of_model in unit.parameters.items():
            parameter = unit.module.get_parameter(name)
            if parameter.requires_grad:
                found[of_model] = parameter.nbytes
    return found


def _ties(chain: Chain, layout: Layout) -> tuple[Tie, ...]:
    held = [_trained(chain, stage) for stage in layout.stages]
    names = {name: size for of_stage in held for name, size in of_stage.items()}
    found = []
    for name, size in names.items():
        stages = tuple(number for number, of_stage in enumerate(held) if name in of_stage)
        if len(stages) > 1:
            found.append(Tie(name, stages, size))
    return tuple(found)


def _crossings(chain: Chain, layout: Layout) -> tuple[Crossing, ...]:
    """What one stage makes and a later one reads. The last stage reads what the model returns: the loss is there."""
    gradients = values_with_gradient(chain)
    made: dict[str, int] = {}
    found: dict[tuple[int, int], list[str]] = {}
    last = len(layout.stages) - 1
    for number, stage in enumerate(layout.stages):
        units = chain.units[stage.first : stage.last]
        reads = {name: None for unit in units for name in unit.reads}
        reads |= dict.fromkeys(chain.outputs) if number == last else {}
        for name in reads:
            if name in made:
                found.setdefault((made[name], number), []).append(name)
        made |= {name: number for unit in units for name in unit.writes}
    return tuple(
        Crossing(source, target, tuple(names), 1.0, float(any(name in gradients for name in names)))
        for (source, target), names in found.items()
    )


def first_stages(chain: Chain, layout: Layout) -> dict[str, int]:
    """The first stage that holds each parameter and buffer."""
    found: dict[str, int] = {}
    for number, stage in enumerate(layout.stages):
        for unit in chain.units[stage.first : stage.last]:
            for name in (*unit.parameters.values(), *unit.buffers.values()):
                found.setdefault(name, number)
    return found


def finest_parts(layout: Layout, samples: int) -> list[tuple[int, int]]:
    """The samples (first, last) of a batch that the stage with most copies is given at a time."""
    copies, found = max(stage.copies for stage in layout.stages), []
    for micro in range(layout.micro_batches):
        begin, end = even_share(samples, micro, layout.micro_batches)
        shares = (even_share(end - begin, copy, copies) for copy in range(copies))
        found += [(begin + first, begin + last) for first, last in shares if first < last]
    return found
