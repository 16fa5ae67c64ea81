"""What would give another result when a model is split, refused by name: `check_exact`."""

from collections.abc import Iterator, Sequence
from typing import Literal

from torch import Tensor, nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.dropout import DROPOUTS
from gradtide.parallel.split.cut.placing import ShardedUnit, place_stage
from gradtide.parallel.split.cut.tensors import pieces_of
from gradtide.parallel.split.cut.ways import chosen_ways
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.layout import Layout

__all__ = ["BatchNormChoice", "check_exact", "check_random", "refusals"]

# ""      refused where the statistics would be of a part of the batch
# shared  copies add their statistics up
# each    each micro-batch has statistics of its own: another result, which the user asks for
BatchNormChoice = Literal["", "shared", "each"]


def check_exact(chain: Chain, layout: Layout, batch_norm: BatchNormChoice = "") -> None:
    """Raises the first thing that would come out otherwise than on one device; call it again when a module's mode
    (training, evaluation) has been changed."""
    found = refusals(chain, layout, batch_norm)
    if found:
        raise ConfigError(found[0] if len(found) == 1 else f"{found[0]} (and {len(found) - 1} more of the kind)")


def refusals(chain: Chain, layout: Layout, batch_norm: BatchNormChoice = "") -> list[str]:
    """All of them, a line each."""
    if batch_norm not in ("", "shared", "each"):
        raise ConfigError(f"batch_norm={batch_norm!r}; choose 'shared' or 'each', or leave it out")
    return [
        *_random(chain.units),
        *_misplaced(chain),
        *_statistics(chain, layout, batch_norm),
        *_embeddings(chain, layout),
        *_ties(chain, layout),
    ]


def check_random(units: Sequence[Unit]) -> None:
    """Refuses layers that draw random numbers of their own."""
    for line in _random(units):
        raise ConfigError(line)


def _modules(units: Sequence[Unit]) -> Iterator[tuple[str, nn.Module]]:
    for unit in units:
        for path, module in unit.module.named_modules():
            yield ".".join(filter(None, (unit.name, path))), module


def _random(units: Sequence[Unit]) -> Iterator[str]:
    for name, module in _modules(units):
        told = f"{name} ({type(module).__name__})"
        if isinstance(module, nn.modules.dropout._DropoutNd) and type(module) not in DROPOUTS:
            yield f"{told} drops at random in a way of its own; use nn.Dropout, Dropout1d, Dropout2d or Dropout3d"
        elif isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
            yield f"{told} draws random numbers that nothing can reproduce on another device; use a layer without"
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0:
            yield f"{told} has dropout={module.dropout} inside, which nothing can reproduce elsewhere; set it to 0"


def _misplaced(chain: Chain) -> Iterator[str]:
    """Masks go by samples, which are the rows of what a dropout reads."""
    for unit in chain.units:
        drops = isinstance(unit.module, nn.modules.dropout._DropoutNd) and unit.module.p > 0
        if drops and chain.rowless.intersection(unit.reads):
            yield f"dropout layer {unit.name} reads {unit.reads[0]}, which has no row a sample; put samples first"


def _statistics(chain: Chain, layout: Layout, batch_norm: str) -> Iterator[str]:
    for stage in layout.stages:
        for name, module in _modules(chain.units[stage.first : stage.last]):
            told = f"{name} ({type(module).__name__})"
            if isinstance(module, nn.SyncBatchNorm):
                yield f"{told} speaks to a process group of its own; use nn.BatchNorm, and batch_norm='shared'"
            elif isinstance(module, nn.modules.batchnorm._BatchNorm) and _takes_batch(module):
                yield from _batch_norm(told, stage.copies, layout.micro_batches, batch_norm)
            elif stage.copies * layout.micro_batches > 1 and _keeps_statistics(module):
                yield f"{told} keeps statistics of the whole batch; take one copy of it and one micro-batch"


def _takes_batch(module: nn.modules.batchnorm._BatchNorm) -> bool:
    return module.training or module.running_mean is None


def _keeps_statistics(module: nn.Module) -> bool:
    norm = isinstance(module, nn.modules.instancenorm._InstanceNorm)
    return norm and module.training and module.running_mean is not None


def _batch_norm(told: str, copies: int, micro_batches: int, batch_norm: str) -> Iterator[str]:
    if copies > 1 and batch_norm != "shared":
        yield (f"{told} would have statistics of each of {copies} copies; say batch_norm='shared', or take one copy")
    if micro_batches > 1 and batch_norm != "each":
        yield (
            f"{told} would have statistics of each of {micro_batches} micro-batches; take one micro-batch, or say "
            "batch_norm='each' if that is what you want"
        )


def _embeddings(chain: Chain, layout: Layout) -> Iterator[str]:
    copies = max(stage.copies for stage in layout.stages)
    for name, module in _modules(chain.units):
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue
        told = f"{name} ({type(module).__name__})"
        if module.sparse:
            yield f"{told} has sparse gradients, which are not split; take sparse=False"
        if module.scale_grad_by_freq and (copies > 1 or layout.micro_batches > 1):
            yield f"{told} scales gradients by how often a word is in the batch; take one copy and one micro-batch"
        if module.max_norm is not None and copies > 1:
            yield f"{told} changes its weights in forward (max_norm), each copy others; take one copy, or no max_norm"
        if module.max_norm is not None and _holders(chain, module.weight) > 1:
            yield f"{told} changes its weights in forward (max_norm), and other units share them; take no max_norm"


def _holders(chain: Chain, weight: Tensor) -> int:
    return sum(any(own is weight for own in unit.module.parameters()) for unit in chain.units)


def _ties(chain: Chain, layout: Layout) -> Iterator[str]:
    """A parameter that units of several stages hold has to be whole in all of them."""
    holders: dict[str, list[tuple[int, str, bool]]] = {}
    for number, stage in enumerate(layout.stages):
        segments, _ = place_stage(chain, stage, chosen_ways(chain, stage))
        for sharded in (unit for segment in segments for unit in segment.units):
            cut = _cut_names(sharded, stage.shards)
            for of_model in sharded.unit.parameters.values():
                holders.setdefault(of_model, []).append((number, sharded.unit.name, of_model in cut))
    for name, found in holders.items():
        if len({number for number, _, _ in found}) > 1 and any(cut for _, _, cut in found):
            units = " and ".join(unit for _, unit, _ in found)
            yield f"{units} share {name} across stages, and one of them cuts it; leave all of them whole"


def _cut_names(sharded: ShardedUnit, shards: int) -> set[str]:
    pieces = [pieces_of(sharded, shard, shards) for shard in range(shards)]
    return {of_model for name, of_model in sharded.unit.parameters.items() if any(p[name] != () for p in pieces)}
