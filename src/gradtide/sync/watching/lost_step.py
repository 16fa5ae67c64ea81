"""A step that is lost with a worker: what it began with, and, until its batches come again, what stayed.

In between the loop's body runs to its end as if nothing had been; what it does on this worker never was.
"""

from collections.abc import Sequence

from torch import Tensor

from gradtide.sync.shared.way import SharedParameters
from gradtide.sync.state import LastStep
from gradtide.sync.trained import Trained
from gradtide.sync.ways import Way

__all__ = ["LostStep", "StepBegin"]


class StepBegin:
    """Noted at a step's first forward, which changes buffers, in a job that may lose workers."""

    def __init__(self, trained: Trained) -> None:
        self._trained, self._buffers = trained, _copies(trained)

    def restore(self) -> None:
        _put_back(self._trained, self._buffers)


class LostStep:
    """Made where the next members have begun alike, from the last step that stayed."""

    def __init__(self, trained: Trained, way: Way) -> None:
        self._trained, self._way, self._buffers = trained, way, _copies(trained)
        self._values = None if isinstance(way, SharedParameters) else LastStep(trained)

    def take_back(self) -> None:
        _put_back(self._trained, self._buffers)
        if isinstance(self._way, SharedParameters):
            self._way.forget_edits()
        elif self._values is not None:
            self._values.restore()


def _copies(trained: Trained) -> list[Tensor]:
    return [buffer.clone() for _, buffer in trained.buffers]


def _put_back(trained: Trained, values: Sequence[Tensor]) -> None:
    for (_, buffer), value in zip(trained.buffers, values, strict=True):
        buffer.copy_(value)
