"""Where a run is: its epoch, the batches of it that are done, and what was seen so far."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

__all__ = ["History", "Position", "share_positions"]


class History(msgspec.Struct, dict=True):
    """What a run saw, an entry an epoch: `print(history)` is a table, `history.plot("curve.png")` a picture. A notebook
    shows both."""

    loss: list[float] = []
    accuracy: list[float | None] = []
    test_loss: list[float] = []  # validation_loss is another name for it
    test_accuracy: list[float | None] = []
    lr: list[float] = []  # of the epoch's last step
    metrics: dict[str, list[float | None]] = {}  # by name, of the validation data
    stopped: str = ""  # why the run ended before its last epoch, if it did

    def __post_init__(self) -> None:
        # After which step this run went on, and from where. It is no part of what was seen: not kept, not compared.
        self.resumed = ""

    @property
    def validation_loss(self) -> list[float]:
        return self.test_loss

    @property
    def validation_accuracy(self) -> list[float | None]:
        return self.test_accuracy

    def columns(self) -> dict[str, list[float | None]]:
        """Whatever was seen, by name: loss, accuracy, validation_loss, ..., every metric, lr."""
        named: dict[str, Any] = {"loss": self.loss, "accuracy": self.accuracy, "validation_loss": self.test_loss}
        named |= {"validation_accuracy": self.test_accuracy, **self.metrics, "lr": self.lr}
        return {name: list(values) for name, values in named.items() if any(value is not None for value in values)}

    def __str__(self) -> str:
        from gradtide.train.steering.table import as_table

        return as_table(self.columns(), self._remarks())

    def _repr_html_(self) -> str:
        from gradtide.train.steering.table import as_html

        return as_html(self.columns(), self._remarks())

    def _remarks(self) -> dict[str, str]:
        return {"resumed": self.resumed, "stopped": self.stopped}

    def plot(self, path: str | Path | None = None) -> None:
        """Draws loss and metrics over epochs into a picture: PNG, SVG or PDF, by the name's ending. Without a name a
        notebook's cell shows it."""
        from gradtide.train.steering.table import draw, show

        columns = self.columns()
        if path is None:
            show(columns)
        else:
            draw(columns, path)


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
