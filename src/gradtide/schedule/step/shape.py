"""What a training step is made of: the stages of a layout with what each computes, keeps, sends and sums up.

A builder turns it into a StepPlan. It is made from predicted costs (planning) or from a model that is cut (running).
"""

from dataclasses import dataclass, replace
from typing import Literal

from gradtide.schedule.step.layout import Order

__all__ = [
    "NO_BYTES", "NO_OVERHEADS", "Crossing", "ExchangeKind", "ExchangeShape", "Handling", "MomentBytes", "Overheads",
    "Seconds", "SegmentShape", "StageShape", "StepShape", "Tie", "UnitMemory",
]  # fmt: skip

# What the shards of a copy do together with a value before the next segment reads it, and with its gradient after that
# segment's backward:
#   gather   each has a slice, all get the whole; back: what all have of the gradient is added up, each gets its slice
#   collect  each has a slice, all get the whole; back: all have the whole gradient, each takes its slice (none sent)
#   sum      each has a part of a sum, all get the sum; back: nothing, all have its gradient
#   spread   all have it (nothing is sent); back: each has a part of the gradient's sum, all get the sum
#   slice    all have it, each takes its slice (nothing is sent); back: slices of the gradient, all get the whole
#   halo     each has a slice, and gets some rows of its neighbours too; back: their gradients go back and are added
ExchangeKind = Literal["gather", "collect", "sum", "spread", "slice", "halo"]


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long something takes for so many samples."""

    fixed_s: float = 0.0
    per_sample_s: float = 0.0

    def of(self, samples: int) -> float:
        return self.fixed_s + self.per_sample_s * samples


@dataclass(frozen=True, slots=True)
class Handling:
    """How long a device has to do with so many bytes, beside the wires."""

    fixed_s: float = 0.0
    per_byte_s: float = 0.0

    def of(self, size: float) -> float:
        return self.fixed_s + self.per_byte_s * size


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a device of speed 1 does in a step beside its layers, as it was measured."""

    task_s: float = 0.0  # each forward or backward of a segment
    send: Handling = Handling()  # a message, of who sends it
    receive: Handling = Handling()  # of who takes it
    exchange: Handling = Handling()  # of each shard
    gather: Handling = (
        Handling()
    )  # gradients that are put together to be added up, and what that takes beside the wires
    add_s_per_byte: float = 0.0  # gradients of a micro-batch, to those of the ones before it
    update_s: float = 0.0
    step_s: float = 0.0  # before the first task and after the last one, of a whole step

    def without_bytes(self) -> "Overheads":
        """What is the same however many bytes there are."""
        handled = (self.send, self.receive, self.exchange, self.gather)
        send, receive, exchange, gather = (Handling(one.fixed_s) for one in handled)
        return replace(self, send=send, receive=receive, exchange=exchange, gather=gather)


NO_OVERHEADS = Overheads()


@dataclass(frozen=True, slots=True)
class MomentBytes:
    """What is needed for a moment, for so many samples."""

    fixed: float = 0.0
    per_sample: float = 0.0

    def of(self, samples: int) -> float:
        return self.fixed + self.per_sample * samples


NO_BYTES = MomentBytes()


@dataclass(frozen=True, slots=True)
class UnitMemory:
    """What one unit of a segment needs on one device."""

    saved_bytes: float  # of a sample, kept for backward
    forward: MomentBytes = NO_BYTES  # beside what it keeps, while its forward runs
    backward: MomentBytes = NO_BYTES  # beside what it kept, while its backward runs, with gradients on their way
    gradient_bytes: int = 0  # of its parameters, from its first backward on


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """What the shards of a copy exchange before a segment: bytes that one shard sends for a sample, there and back."""

    kind: ExchangeKind
    value: str
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """What a device computes without a word to anybody, between two exchanges of its stage.

    `before` is exchanged before its forward, in this order, and the other way round after its backward.
    """

    before: tuple[ExchangeShape, ...] = ()
    forward: Seconds = Seconds()
    backward: Seconds = Seconds()  # without recomputation
    for_weights: float = 0.5  # the share of backward that is about parameters alone
    saved_bytes: float = 0.0  # of a sample, alive from forward to backward
    input_bytes: float = 0.0  # of a sample: what is kept where the rest is computed again
    brought_bytes: float = 0.0  # of these, what counts in saved_bytes too
    units: tuple[UnitMemory, ...] = ()  # in order, where more is known of memory than the two figures above


@dataclass(frozen=True, slots=True)
class StageShape:
    """A stage of a layout: segment after segment on each of its devices."""

    devices: tuple[int, ...]  # as in Stage
    shards: int
    segments: tuple[SegmentShape, ...]
    after: tuple[ExchangeShape, ...] = ()  # exchanged after the last segment, so that what leaves the stage is whole
    parameter_bytes: int = 0  # of one shard
    gradient_bytes: int = 0  # of those that are trained
    state_bytes: int = 0  # of the optimizer
    recompute: bool = False
    trained: bool = True  # whether it has anything to compute gradients for, here or before it
    update: Seconds = Seconds()
    update_bytes: int = 0  # that the optimizer needs for a moment

    @property
    def copies(self) -> int:
        return len(self.devices) // self.shards

    def device(self, copy: int, shard: int) -> int:
        return self.devices[copy * self.shards + shard]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Values that one stage makes and another one reads: one message a micro-batch, and one back with gradients."""

    source: int  # stages
    target: int
    values: tuple[str, ...]
    forward_bytes: float = 0.0  # of a sample; if not batched, of all of it
    backward_bytes: float = 0.0  # the same; 0: none of them has a gradient, and nothing goes back
    batched: bool = True  # rows are samples; else all of it goes to whoever needs it, and copies must match one to one


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter that several stages hold: its gradients of all of them are added up.

    It counts in gradient_bytes of each of these stages. If they have equally many shards, it is summed shard by shard;
    else it is whole on every shard, and the first shard of each copy adds its gradient.
    """

    name: str
    stages: tuple[int, ...]
    bytes: int  # on one device


@dataclass(frozen=True, slots=True)
class StepShape:
    """A training step of so many samples."""

    stages: tuple[StageShape, ...]
    crossings: tuple[Crossing, ...]
    micro_batches: tuple[int, ...]  # samples of each, in order
    order: Order = "1f1b"
    ties: tuple[Tie, ...] = ()
    clip: bool = False  # the gradients' norm is taken over all devices before the update
    speeds: tuple[float, ...] = ()  # of each device; (): all 1
    overheads: Overheads = NO_OVERHEADS
