"""What one device holds and runs of a stage: segments of local modules, and which part of each parameter is its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradtide.parallel.split.cut.dropout import DropoutPlace
from gradtide.parallel.split.cut.shared_norm import CopiesBatchNorm
from gradtide.schedule.step.shape import ExchangeKind

__all__ = ["LocalParameter", "LocalSegment", "LocalStage", "LocalUnit", "ShardExchange"]


@dataclass(frozen=True, slots=True)
class ShardExchange:
    """What the shards of a copy do with a value before a segment reads it (as ExchangeShape says)."""

    kind: ExchangeKind
    value: str  # what is read
    gives: str  # the name of what comes out
    dim: int = 0  # of the slices
    sizes: tuple[int, ...] = ()  # of each shard's slice
    halo: int = 0  # rows of each neighbour
    has_gradient: bool = True  # False: nothing to do on the way back


@dataclass(frozen=True, slots=True, eq=False)
class LocalUnit:
    """A unit as this device runs it."""

    name: str
    module: nn.Module
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LocalSegment:
    """Units that run one after the other, without a word to anybody."""

    before: tuple[ShardExchange, ...]
    units: tuple[LocalUnit, ...]
    reads: tuple[str, ...]  # what it takes: made before it, or by one of its exchanges
    writes: tuple[str, ...]  # what somebody after it reads
    ends: tuple[tuple[str, ...], ...] = field(init=False)  # after each unit: what nobody in it reads any more

    def __post_init__(self) -> None:
        wanted, found = set(self.writes), list[tuple[str, ...]]()
        for unit in reversed(self.units):
            found.append(tuple(name for name in dict.fromkeys((*unit.reads, *unit.writes)) if name not in wanted))
            wanted |= {*unit.reads}
        object.__setattr__(self, "ends", tuple(reversed(found)))


@dataclass(frozen=True, slots=True, eq=False)
class LocalParameter:
    """A parameter or buffer that this device holds, and what it is of the whole model's."""

    name: str  # the model's; of tied ones the first
    tensor: torch.Tensor  # nn.Parameter, or a buffer of one of the local modules
    shape: tuple[int, ...]  # of the whole
    index: tuple[slice, ...] = ()  # the part that is here; (): all of it
    first_shard: bool = True  # of the shards that hold the same part, the one that counts (norms, checkpoints)


@dataclass(slots=True, eq=False)
class LocalStage:
    """All of a stage that one device runs."""

    segments: Sequence[LocalSegment]
    after: tuple[ShardExchange, ...] = ()  # closes the stage: what leaves it is whole on every shard
    parameters: list[LocalParameter] = field(default_factory=list)
    buffers: list[LocalParameter] = field(default_factory=list)
    place: DropoutPlace = field(default_factory=DropoutPlace)  # the runner says `place.at(...)` before each segment
    shared_norms: list[CopiesBatchNorm] = field(default_factory=list)  # the runner sets `add_up` of each, in this order
