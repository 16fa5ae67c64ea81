"""One event vocabulary: what gradtide tells whoever watches.

Code on the way of a gradient calls `emit(event)` and never reads a clock; the observer that receives an event notes
when it came (see train/meter.py). An observer is a plain function, passed down; there is no global list of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "BatchDone",
    "BatchStarted",
    "CheckpointFailed",
    "CheckpointTaken",
    "CompressionDecided",
    "Degraded",
    "Emit",
    "EpochDone",
    "Event",
    "GradientsReady",
    "GradientsSynchronised",
    "LocalWindow",
    "ParametersUpdated",
    "SharesChanged",
    "Waiting",
    "ignore",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True, slots=True)
class BatchStarted(Event):
    """The shards of a batch are on their devices; forward begins."""


@dataclass(frozen=True, slots=True)
class GradientsReady(Event):
    """Backward is done on every device; each holds its own gradients."""


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """This worker has done its part; from here on it waits for others."""


@dataclass(frozen=True, slots=True)
class GradientsSynchronised(Event):
    """Every device holds the gradient of the whole batch."""

    wire_bytes: int  # what went from one device to another


@dataclass(frozen=True, slots=True)
class LocalWindow(Event):
    """What a worker changed by itself in some steps is in the base on the servers. Where each shard was in its one
    order of updates, as [shard, epoch, sequence]: when the worker pulled the base that it began with, and when its
    change was applied. With all workers' windows an asynchronous run can be replayed."""

    steps: int
    samples: float
    began: list[list[int]]
    applied: list[list[int]]


@dataclass(frozen=True, slots=True)
class ParametersUpdated(Event):
    """Every device has taken its optimizer step."""


@dataclass(frozen=True, slots=True)
class BatchDone(Event):
    """One step of training is over."""

    epoch: int
    step: int  # counted from 1 over the whole run
    samples: int
    loss: float  # mean over the batch
    correct: int | None  # None where the targets are not classes
    lr: float


@dataclass(frozen=True, slots=True)
class EpochDone(Event):
    """One pass over the training data is over, and the test data, if any, has been evaluated."""

    epoch: int
    test_loss: float | None
    test_accuracy: float | None


@dataclass(frozen=True, slots=True)
class SharesChanged(Event):
    """From the next batch on workers, or the devices of one, take other parts of a batch than before."""

    who: str  # "worker" or "device"
    samples: list[int]  # of each
    text: str  # who takes what, and why


@dataclass(frozen=True, slots=True)
class CompressionDecided(Event):
    """What `fit(compress="auto")` has come to: a codec, or none, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Degraded(Event):
    """So many shards of a store have no replica in sync: what is pushed to them is applied, and no more. 0: all do."""

    shards: int


@dataclass(frozen=True, slots=True)
class CheckpointTaken(Event):
    """A checkpoint is complete."""

    step: int
    folder: str
    size_bytes: int
    seconds: float  # from the cut on; training went on meanwhile


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written; training goes on, and the one before it is still there."""

    step: int
    text: str


Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer for those who watch nothing."""
