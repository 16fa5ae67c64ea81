"""Who hands which samples to whom where two stages meet."""

from collections.abc import Iterator
from typing import NamedTuple

from gradtide.even_share import even_share
from gradtide.schedule.step.shape import Crossing, StepShape

__all__ = ["Handover", "handovers", "sends_back", "share_of"]


class Handover(NamedTuple):
    """A device hands samples first to last - 1 to another one, or keeps them if it is the same."""

    source: int
    target: int
    first: int
    last: int


def share_of(shape: StepShape, stage: int, copy: int, micro: int) -> tuple[int, int]:
    """The samples of a micro-batch that are a copy's, counted from the batch's first."""
    first = sum(shape.micro_batches[:micro])
    begin, end = even_share(shape.micro_batches[micro], copy, shape.stages[stage].copies)
    return first + begin, first + end


def sends_back(shape: StepShape, crossing: Crossing) -> bool:
    """Whether gradients come back."""
    return (
        crossing.backward_bytes > 0 and shape.stages[crossing.source].trained and shape.stages[crossing.target].trained
    )


def handovers(shape: StepShape, crossing: Crossing, micro: int, back: bool = False) -> Iterator[Handover]:
    """Every copy hands each copy of the other stage the samples that both have.

    All shards of a copy have all of a value, so one of them is enough: shard q gets it from shard q mod k of k.
    """
    source, target = shape.stages[crossing.source], shape.stages[crossing.target]
    for i in range(source.copies):
        for j in range(target.copies):
            if not crossing.batched and i != j:
                continue
            mine, yours = share_of(shape, crossing.source, i, micro), share_of(shape, crossing.target, j, micro)
            first, last = max(mine[0], yours[0]), min(mine[1], yours[1])
            if first >= last:
                continue
            if back:
                for p in range(source.shards):
                    yield Handover(target.device(j, p % target.shards), source.device(i, p), first, last)
            else:
                for q in range(target.shards):
                    yield Handover(source.device(i, q % source.shards), target.device(j, q), first, last)
