"""One event vocabulary: what gradtide tells whoever watches.

Code on the way of a gradient calls `emit(event)` and never reads a clock; the observer that receives an event notes
when it came (see observe/meter.py). An observer is a plain function, passed down; there is no global list of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = [
    "BatchDone",
    "BatchStarted",
    "CheckpointFailed",
    "CheckpointTaken",
    "ClockAligned",
    "CompressionDecided",
    "Degraded",
    "Emit",
    "EpochDone",
    "Event",
    "FailedOver",
    "GradientsReady",
    "GradientsSynchronised",
    "LinksPlanned",
    "LocalWindow",
    "MemberCame",
    "MemberLost",
    "MembersDecreed",
    "ParametersUpdated",
    "PullAnswered",
    "PullAsked",
    "PushAnswered",
    "PushArriving",
    "PushBegan",
    "PushTaken",
    "ReplicaLag",
    "ReplicasShort",
    "ShardsLost",
    "SharesChanged",
    "SplitDecided",
    "TaskDone",
    "ValuesPulled",
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
class LinksPlanned(Event):
    """What this worker sends to whom in each synchronisation from now on, and pulls from servers, as far as that is
    known beforehand: each GradientsSynchronised with bytes stands for one. `predicted_s`: how long one takes on
    `links`, by the planner."""

    way: str
    loads: list[list[str | int]]  # [from whom, to whom, bytes]
    predicted_s: float | None = None
    links: str = ""  # the topology that it was predicted on


@dataclass(frozen=True, slots=True)
class PushBegan(Event):
    """Gradients leave for the servers now, as requests of this worker that come after the one of this number."""

    round: int  # 0: outside of rounds
    sequence: int


@dataclass(frozen=True, slots=True)
class ValuesPulled(Event):
    """Servers' values are here. `staleness`: how many rounds before this worker's step are missing in them."""

    round: int
    staleness: int
    sequence: int = 0  # of this worker's last request


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
class TaskDone(Event):
    """A device of a split model has done a task of its step. `waited_s`: of that, for what others had yet to send."""

    device: int
    kind: str  # as in schedule/step/model.py
    stage: int
    micro: int
    begin_s: float  # time.perf_counter(), which all processes of a host share
    end_s: float
    waited_s: float
    sent: int = -1  # of a message that this device sent: its number in the step
    received: list[int] = field(default_factory=list)  # the numbers of those that it took


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
    metrics: dict[str, float] = field(default_factory=dict)  # of the user's own, by name


@dataclass(frozen=True, slots=True)
class SplitDecided(Event):
    """How a model is split, and why, as it is known with its first batch."""

    text: str


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
class PushArriving(Event):
    """On a server: the first bytes of a worker's request are here."""

    worker: int
    sequence: int  # the worker's number of it
    round: int  # 0: outside of rounds


@dataclass(frozen=True, slots=True)
class PushTaken(Event):
    """On a server: all of it is here. In rounds it waits until all have pushed."""

    worker: int
    sequence: int
    round: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PushAnswered(Event):
    """On a server: all of a push that is this server's is in the values and where the replicas are; in rounds: for all
    of it the round is closed."""

    worker: int
    sequence: int
    round: int


@dataclass(frozen=True, slots=True)
class PullAsked(Event):
    """On a server: a worker asks for values. It may have to wait for a round."""

    worker: int
    sequence: int
    round: int


@dataclass(frozen=True, slots=True)
class PullAnswered(Event):
    """On a server: a worker has been sent all the values that it asked for."""

    worker: int
    sequence: int
    round: int


@dataclass(frozen=True, slots=True)
class ReplicaLag(Event):
    """On a server: so many entries of its log this replica has not confirmed; looked at now and then."""

    replica: str
    entries: int


@dataclass(frozen=True, slots=True)
class ClockAligned(Event):
    """The clock that this process's events are timed by, compared with another: add `offset_s` to a time of this one,
    and it is the other's, give or take `error_s`. The same name is the same clock."""

    clock: str
    reference: str
    offset_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class MemberCame(Event):
    """A server or a worker of a store has come, or has come again."""

    role: str
    name: str


@dataclass(frozen=True, slots=True)
class MemberLost(Event):
    """A server or a worker of a store is not there any more: its process died, or its lease ran out."""

    role: str
    name: str


@dataclass(frozen=True, slots=True)
class MembersDecreed(Event):
    """Who is in the rounds from now on."""

    workers: list[int]


@dataclass(frozen=True, slots=True)
class FailedOver(Event):
    """Shards of a server that was lost have another primary, which has all that was acknowledged."""

    server: str
    shards: int


@dataclass(frozen=True, slots=True)
class ReplicasShort(Event):
    """So many shards have fewer copies than were asked for; 0: all have theirs again."""

    shards: int


@dataclass(frozen=True, slots=True)
class ShardsLost(Event):
    """So many shards had to begin anew, or with a checkpoint: more servers died than there were replicas."""

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
