"""One batch, as all devices know it: the model's inputs by name, the targets, and what each part's loss counts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.devices.batches import DeviceBatch
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.split.run.speaking.communicator import Communicator, Packet

__all__ = ["SeenLoss", "SplitBatch", "weigh_parts"]

_TAG = (1 << 40) + 3  # of what was seen of a batch: beside all tasks


@dataclass(frozen=True, slots=True, eq=False)
class SplitBatch:
    """A global batch of so many samples."""

    inputs: Mapping[str, Any]
    samples: int
    structure: Any = None  # of what the model returns
    step: int = 0  # that have been taken before
    targets: Tensor | None = None
    loss: Loss | None = None
    weights: Mapping[tuple[int, int], float] | None = None  # of the loss of the part (first, last)
    rowless: frozenset[str] = frozenset()  # inputs without a row a sample, even if they are as long

    def rows(self, name: str, first: int, last: int) -> Packet:
        """What samples first to last - 1 have of an input; what is no row a sample goes to all."""
        value: Packet = self.inputs[name]
        rows = name not in self.rowless and isinstance(value, Tensor) and value.dim()
        if isinstance(value, Tensor) and rows and len(value) == self.samples:
            return value[first:last]
        return value

    def returned(self, leaves: Sequence[Packet]) -> Any:
        """As the model returns it."""
        return leaves[0] if self.structure is None else pytree.tree_unflatten(list(leaves), self.structure)


class SeenLoss:
    """What one device has seen of a step's loss, for all to know: who has seen all that it will says so at once, while
    gradients go on their way back. Nobody waits for that but at the end of the step, when it is there."""

    def __init__(self, communicator: Communicator, seers: Sequence[int], parts: int) -> None:
        """seers: the devices that see a loss; parts: of the batch that are seen here."""
        self._communicator, self._seers, self._left = communicator, seers, parts
        self.loss = 0.0  # of this device's samples, as much as it counts in the batch's
        self.correct: int | None = 0  # samples in the right class; None where outputs are not scores of classes
        self._told = False

    def add(self, loss: float, correct: int | None) -> None:
        """Of one part."""
        self.loss += loss
        self.correct = None if correct is None or self.correct is None else self.correct + correct
        self._left -= 1
        if not self._left:
            self._tell()

    def _tell(self) -> None:
        self._told = True
        for other in range(self._communicator.size):
            if other != self._communicator.rank:
                self._communicator.send([self.loss, self.correct], other, _TAG)

    def of_all(self) -> tuple[float, int | None]:
        """The whole batch's, the same on all devices; each calls it at its end."""
        here = self._communicator.rank
        if here in self._seers and not self._told:
            self._tell()
        loss, correct = 0.0, list[Packet]()
        for seer in self._seers:
            told = [self.loss, self.correct] if seer == here else self._communicator.receive(seer, _TAG)
            assert isinstance(told[0], float)
            loss += told[0]
            correct.append(told[1])
        counts = [count for count in correct if isinstance(count, int)]
        return loss, sum(counts) if len(counts) == len(correct) else None


def weigh_parts(
    loss: Loss, targets: Tensor, spans: Sequence[tuple[int, int]], samples: int
) -> tuple[dict[tuple[int, int], float], float]:
    """What each part's loss counts in the batch's, so that gradients only have to be added up; and the terms of all.

    A part (samples first to last - 1) is what a copy of the last stage has of a micro-batch: every device knows all.
    """
    parts = []
    for first, end in spans:
        rows = targets[first:end]
        parts.append(DeviceBatch(rows, rows, (end - first) / samples))
    weighed = loss.begin(parts, split=len(parts) > 1)
    loss.refuse_nothing(weighed.terms)
    if loss.terms.said and loss.terms.count is not None and not math.isclose(loss.count(targets), weighed.terms):
        raise ConfigError(
            f"count gives {loss.count(targets):g} terms for a batch's targets, and {weighed.terms:g} for its parts "
            "together; a batch has the terms of all its samples, as in count=len"
        )
    return dict(zip(spans, weighed.weights, strict=True)), weighed.terms
