"""What a device has of one stage and one micro-batch: values by name, and their gradients as far as they have come."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.parallel.split.run.segments import Recording
from gradtide.parallel.split.run.speaking.communicator import Packet

__all__ = ["Room", "ValuePiece", "assembled", "rows_of"]


@dataclass(frozen=True, slots=True, eq=False)
class ValuePiece:
    """A value, or its gradient, for the samples first to last - 1 of the batch."""

    first: int
    last: int
    value: Packet


@dataclass(slots=True, eq=False)
class Room:
    """Samples first to last - 1, in one stage."""

    first: int
    last: int
    values: dict[str, Packet] = field(default_factory=dict)
    gradients: dict[str, list[Tensor]] = field(default_factory=dict)  # the latest reader's first
    recordings: dict[int, Recording] = field(default_factory=dict)  # by segment
    exchanged: set[tuple[int, int, bool]] = field(default_factory=set)  # (segment, number, back)
    begun_back: bool = False

    def keep(self, wanted: frozenset[str]) -> None:
        """Forgets all other values."""
        for name in [name for name in self.values if name not in wanted]:
            del self.values[name]

    def add(self, name: str, gradient: Tensor | None) -> None:
        if gradient is not None:
            self.gradients.setdefault(name, []).append(gradient)

    def gradient(self, name: str) -> Tensor | None:
        """What has come so far, added up."""
        parts = self.gradients.get(name)
        if not parts:
            return None
        if len(parts) > 1:
            total = parts[0] + parts[1]
            for part in parts[2:]:
                total += part
            parts[:] = [total]
        return parts[0]

    def take_gradient(self, name: str) -> Tensor | None:
        total = self.gradient(name)
        self.gradients.pop(name, None)
        return total


def rows_of(
    value: Packet, room: Room, first: int, last: int, name: str, rowless: frozenset[str] = frozenset()
) -> Packet:
    """The samples first to last - 1 of a value of the room."""
    if not isinstance(value, Tensor) or (first, last) == (room.first, room.last):
        return value
    if name in rowless or value.dim() == 0 or len(value) != room.last - room.first:
        raise ConfigError(
            f"{name} has shape {tuple(value.shape)} for {room.last - room.first} samples: it has no row a sample, so "
            "it can't go to a stage with another number of copies; give both equally many, or cut elsewhere"
        )
    rows = value.detach()[first - room.first : last - room.first]
    return rows.requires_grad_(value.requires_grad)


def assembled(pieces: Sequence[ValuePiece], room: Room, name: str, rowless: frozenset[str] = frozenset()) -> Packet:
    """Of pieces in any order, all samples of the room."""
    ordered = sorted(pieces, key=lambda piece: piece.first)
    if len(ordered) == 1 and (ordered[0].first, ordered[0].last) == (room.first, room.last):
        return ordered[0].value
    assert sum(piece.last - piece.first for piece in ordered) == room.last - room.first, (name, ordered)
    tensors = [piece.value for piece in ordered if isinstance(piece.value, Tensor)]
    if not tensors:
        first = ordered[0].value
        if any(piece.value != first for piece in ordered):
            raise ConfigError(f"{name} differs from one copy of its stage to the next; only rows of tensors may")
        return first
    if name in rowless:
        raise ConfigError(_no_rows(name))
    rows = [_filled(piece, tensors[0], name) for piece in ordered]
    return torch.cat([row.detach() for row in rows]).requires_grad_(any(tensor.requires_grad for tensor in tensors))


def _filled(piece: ValuePiece, like: Tensor, name: str) -> Tensor:
    """Its rows; nought where it has none (a gradient that nothing came of)."""
    samples = piece.last - piece.first
    if piece.value is None:
        return like.new_zeros((samples, *like.shape[1:]))
    if not isinstance(piece.value, Tensor) or piece.value.dim() == 0 or len(piece.value) != samples:
        raise ConfigError(_no_rows(name))
    return piece.value


def _no_rows(name: str) -> str:
    return f"{name} has no row a sample, so stages with different numbers of copies can't pass it on"
