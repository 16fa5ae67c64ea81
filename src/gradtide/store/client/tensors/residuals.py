"""What compression has left out of what a client pushed, by block: it is part of what is pushed next.

It is that of the weighted gradient, so that it counts what it would have counted however much the next one does. Blocks
of it are never changed in place: what a push began with, and what it left, are kept until it is answered, and if it is
refused, it never was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradtide.compress.payload import is_finite
from gradtide.store.rules.codecs import BlockCodec

__all__ = ["Change", "PushResiduals", "Shrunk", "shrink"]

Name = tuple[str, int]  # key, block


@dataclass(frozen=True, slots=True)
class Change:
    """Of one block's residual, by a push; None: nothing is left out."""

    before: Tensor | None
    after: Tensor | None

    @property
    def undone(self) -> "Change":
        return Change(self.after, self.before)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A block as it is pushed: encoded, or as it is where it can't be, with what that does to its residual."""

    values: Tensor
    encoded: bool
    change: Change | None = None


@dataclass(slots=True)
class PushResiduals:
    """By block. Guarded by the engine's lock."""

    blocks: dict[Name, Tensor] = field(default_factory=dict)

    def of(self, name: Name) -> Tensor | None:
        return self.blocks.get(name)

    def put(self, name: Name, change: Change) -> None:
        """Somebody else's push may have been undone since this one looked: then its part is counted too."""
        now, after = self.blocks.get(name), change.after
        if now is not change.before:
            after = _sum(after, _sum(now, change.before, -1.0))
        if after is None:
            self.blocks.pop(name, None)
        else:
            self.blocks[name] = after

    def put_all(self, changes: Mapping[Name, Change]) -> None:
        for name, change in changes.items():
            self.put(name, change)

    def add(self, name: Name, more: Tensor) -> None:
        total = _sum(self.blocks.get(name), more)
        assert total is not None
        self.blocks[name] = total

    def scale(self, names: Iterable[Name], factor: float) -> None:
        for name in names:
            if name in self.blocks:
                self.blocks[name] = self.blocks[name] * factor

    def clear(self) -> None:
        self.blocks.clear()


def _sum(first: Tensor | None, second: Tensor | None, alpha: float = 1.0) -> Tensor | None:
    if second is None:
        return first
    return second * alpha if first is None else torch.add(first, second, alpha=alpha)


def shrink(
    gradient: Tensor, before: Tensor | None, weight: float, codec: BlockCodec, draw: int, *, flush: bool = False
) -> Shrunk | None:
    """What is pushed for a block of a gradient that counts `weight`; None: it can't be encoded (it is not finite).
    `flush`: it is the last, so all of it. What does not count (a weight of 0 or less) can't carry what is left."""
    if weight <= 0:
        before, flush = None, False
    values = gradient if before is None else torch.add(gradient, before, alpha=1.0 / weight)
    if flush:
        return Shrunk(values, encoded=False, change=Change(before, None)) if is_finite(values.numpy()) else None
    if before is None and codec.feedback:
        values = values.clone()
    encoded = codec.encode(values, draw)
    if encoded is None:
        return None
    if weight <= 0 or not codec.feedback:
        return Shrunk(encoded, encoded=True, change=None if before is None else Change(before, None))
    return Shrunk(encoded, encoded=True, change=Change(before, values.mul_(weight) if weight != 1.0 else values))
