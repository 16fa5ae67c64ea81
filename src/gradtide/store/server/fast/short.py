"""How a part of a layout goes a server's fast path: a push or pull with nothing to refuse and nobody to wait for.

It does what `Shard.handle` does with such a request, with what can be known beforehand looked up once for each layout:
a third of the lines for one small key, and no Python for each key where many are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.store.rules.arithmetic import BlockState, Contribution
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.rules.updates import is_plain_sum
from gradtide.store.shard.filter import Filter
from gradtide.store.shard.shard import Shard
from gradtide.store.wire.credit import ANSWERS_KEPT
from gradtide.store.wire.messages import Part, Pull, Pulled, Push, Pushed, Table, Version

__all__ = ["Short", "find_short"]

_SPARE = 64  # so many answers more than a shard must keep, so that the oldest are looked for once in a while


@dataclass(slots=True)
class Short:
    """A part of a layout that can go the fast path, as long as the table stays."""

    table: Table | None
    shard: Shard[Tensor]
    states: list[BlockState[Tensor]]
    size_bytes: int
    sums: list[Tensor]  # the blocks' own values where all are simply added to; else empty
    views: list[memoryview]  # of the blocks' values
    lasting: bool  # whether these values stay where they are

    def push(self, request: Push, sequence: int, after: int, values: Sequence[Tensor]) -> Pushed | None:
        """Applies the values of such a request; None when that is not for here, and nothing was done."""
        shard = self.shard
        record = shard.filter.records.get(request.client)
        if record is None or record.incarnation != request.incarnation or not after <= record.highest < sequence:
            return None
        if shard.log is not None or shard.waiting_pushes or shard.waiting_pulls or request.decree > shard.decree:
            return None
        if self.sums and request.weight is None:
            if len(self.sums) == 1:
                self.sums[0].add_(values[0])
            else:
                torch._foreach_add_(self.sums, list(values))
        else:
            for state, value in zip(self.states, values, strict=True):
                state.apply(state.combine((Contribution(request.weight, value),)))
        version = shard.version
        shard.version = Version(version.epoch, version.sequence + 1)
        record.highest = sequence
        answers = record.answers
        pushed = answers[sequence] = Pushed(sequence, shard.number, shard.version)
        if len(answers) > ANSWERS_KEPT + _SPARE:
            Filter.forget_oldest(record)
        return pushed

    def values(self) -> list[memoryview]:
        """The blocks' values as they are now."""
        return self.views if self.lasting else [bytes_of(state.value()) for state in self.states]

    def pull(self, request: Pull, after: int, at_least: Version) -> Pulled | None:
        """What `values` are an answer to; None when it can't be given now, or not here."""
        shard = self.shard
        if shard.log is not None or request.decree > shard.decree:
            return None
        if not shard.filter.is_current(request.client, request.incarnation):
            return None
        if shard.version < at_least or not shard.filter.has_seen(request.client, request.incarnation, after):
            return None
        return Pulled(request.sequence, shard.number, shard.version)


def find_short(table: Table | None, shard: Shard[Tensor] | None, part: Part) -> Short | None:
    """None where requests for this part need to be looked at one by one."""
    if shard is None or shard.log is not None:
        return None
    blocks = [shard.blocks.get((piece.key, piece.block)) for piece in part.pieces]
    states = []
    for block, piece in zip(blocks, part.pieces, strict=True):
        if block is None or block.spec.delay is not None or block.spec.reject_nan or block.spec.compress:
            return None
        if piece.start or piece.count != block.elements or not piece.count:
            return None
        states.append(block.state)
    values = [state.value() for state in states]
    sums = values if all(map(is_plain_sum, states)) else []
    lasting = all(state.value() is value for state, value in zip(states, values, strict=True))
    size_bytes = sum(piece.size_bytes for piece in part.pieces)
    return Short(table, shard, states, size_bytes, sums, [bytes_of(value) for value in values], lasting)
