"""A stage as one of its shards runs it: `cut_stage`."""

import torch
from torch import nn

from gradtide.parallel.split.cut.exactness import check_random
from gradtide.parallel.split.cut.local import LocalSegment, LocalStage, LocalUnit, ShardExchange
from gradtide.parallel.split.cut.local_modules import LocalRules, copied, filled, prepared
from gradtide.parallel.split.cut.placing import ShardedSegment, ShardedUnit, place_stage
from gradtide.parallel.split.cut.tensors import TensorParts, TensorSource, check_ties
from gradtide.parallel.split.cut.ways import chosen_ways
from gradtide.parallel.split.layers.registry import LayerPart
from gradtide.parallel.split.units import Chain
from gradtide.schedule.step.layout import Stage

__all__ = ["cut_stage"]

CPU = torch.device("cpu")


def cut_stage(
    chain: Chain,
    stage: Stage,
    shard: int,
    device: torch.device = CPU,
    *,
    share_batch_norm: bool = False,
    source: TensorSource | None = None,
) -> LocalStage:
    """The local modules of a shard, with parameters of their own, in segments between exchanges.

    `share_batch_norm`: the copies of the stage add batch norms' statistics up (where there are several).
    `source` gives first values, a unit at a time, to a model that is on the meta device.
    """
    check_random(chain.units[stage.first : stage.last])
    segments, after = place_stage(chain, stage, chosen_ways(chain, stage))
    check_ties([unit for segment in segments for unit in segment.units], stage.shards)
    parts = TensorParts(shard, stage.shards, device, source)
    rules = LocalRules(share_batch_norm=share_batch_norm and stage.copies > 1)
    modules = [[_local_module(unit, parts, rules) for unit in segment.units] for segment in segments]
    leaving = {value for unit in chain.units[stage.last :] for value in unit.reads} | set(chain.outputs)
    wanted = _wanted(segments, after, leaving)
    locals_ = [_segment(*one) for one in zip(segments, modules, wanted, strict=True)]
    return LocalStage(locals_, tuple(after), parts.parameters, parts.buffers, rules.place, rules.shared)


def _local_module(sharded: ShardedUnit, parts: TensorParts, rules: LocalRules) -> nn.Module:
    name, module = sharded.unit.name, sharded.unit.module
    tensors = parts.of(sharded)
    part = LayerPart(parts.shard, parts.shards, sharded.given)
    if sharded.way is None:
        whole = copied(name, module, tensors)
        if parts.device.type not in ("cpu", "meta"):
            whole = whole.to(parts.device)  # a graph's constants
        return prepared(name, whole, rules, part)
    local = filled(name, sharded.way.local(module, part), tensors).train(module.training)
    return prepared(name, local, rules, part)


def _wanted(segments: list[ShardedSegment], after: list[ShardExchange], leaving: set[str]) -> list[set[str]]:
    """What is read after each segment."""
    wanted = leaving | {exchange.value for exchange in after}
    found = []
    for segment in reversed(segments):
        found.append(wanted)
        reads = {name for unit in segment.units for name in unit.reads}
        wanted = wanted | reads | {exchange.value for exchange in segment.before}
    return found[::-1]


def _segment(placed: ShardedSegment, modules: list[nn.Module], wanted: set[str]) -> LocalSegment:
    made: dict[str, None] = {}
    reads: dict[str, None] = {}
    units = []
    for unit, module in zip(placed.units, modules, strict=True):
        reads.update((name, None) for name in unit.reads if name not in made)
        made.update((name, None) for name in unit.writes)
        units.append(LocalUnit(unit.unit.name, module, unit.reads, unit.writes))
    writes = tuple(name for name in made if name in wanted)
    return LocalSegment(tuple(placed.before), tuple(units), tuple(reads), writes)
