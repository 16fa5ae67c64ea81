"""Where a run is: its epoch, the batches of it that are done, and what was seen so far."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

__all__ = ["History", "Position", "share_positions"]


class History(msgspec.Struct):
    """What a run saw, an entry an epoch."""

    loss: list[float] = []
    accuracy: list[float | None] = []
    test_loss: list[float] = []
    test_accuracy: list[float | None] = []


class Position(msgspec.Struct):
    """After `step` steps, `in_epoch` of them in this epoch; the sums are over these."""

    epoch: int = 1
    in_epoch: int = 0
    step: int = 0
    samples: int = 0
    summed: float = 0.0  # of the losses, each times its terms
    terms: float | None = None  # that losses were means over; None in a checkpoint of old, when that was the samples
    correct: int = 0
    classes: bool = True  # whether all targets so far were classes
    batches: int | None = None  # of an epoch, once that is known
    lr: float = 0.0  # of the last step
    draws: bool = True  # whether the model draws random numbers, as far as is known
    history: History = msgspec.field(default_factory=History)

    def __post_init__(self) -> None:
        self.terms = float(self.samples) if self.terms is None else self.terms

    def next_epoch(self) -> None:
        self.batches = self.in_epoch or self.batches
        self.epoch, self.in_epoch = self.epoch + 1, 0
        self.samples, self.summed, self.terms, self.correct, self.classes = 0, 0.0, 0.0, 0, True


def share_positions(positions: Sequence[Position], rank: int, size: int) -> Position:
    """Where one of `size` workers goes on from what so many had seen: all of it is somebody's."""
    own, mine = positions[rank % len(positions)], positions[rank::size]
    return replace(
        own,
        samples=sum(one.samples for one in mine),
        summed=sum(one.summed for one in mine),
        terms=sum(one.terms or 0.0 for one in mine),
        correct=sum(one.correct for one in mine),
        classes=all(one.classes for one in mine),
    )
