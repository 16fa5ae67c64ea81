"""What a model costs, unit by unit: what a profile finds, and what the search for a layout reads."""

from dataclasses import dataclass
from typing import Literal

from gradtide.schedule.step.shape import NO_BYTES, NO_OVERHEADS, MomentBytes, Overheads, Seconds

__all__ = ["UNKNOWN", "CutWay", "ModelCosts", "State", "UnitCost", "Value"]

UNKNOWN = -2  # who keeps a value: it is taken as counted

State = Literal["whole", "sliced", "partial", "any"]  # of a value on the shards of a copy; any: whichever it is


@dataclass(frozen=True, slots=True)
class Value:
    """What a unit makes, or the model is given, and others read."""

    name: str
    bytes: float  # of a sample
    has_gradient: bool = True
    batched: bool = True  # its rows are samples
    keeper: int = UNKNOWN  # the unit whose saved bytes it counts in; -1: nobody keeps it


@dataclass(frozen=True, slots=True)
class CutWay:
    """One way to cut a unit into shards."""

    name: str  # "columns", "rows", "both", "channels", "groups", ...; "whole": every shard computes all of it
    needs: State  # of what it reads
    gives: State  # of what it makes; any: the state of what it reads
    gradient: Literal["whole", "partial"] = "whole"  # of what it reads, where it needs the whole: on each shard
    computes: bool = True  # a shard computes a part (else all of it)
    holds: bool = True  # a shard holds a part of the parameters (else all of them)
    most: int = 1 << 30  # shards
    at: tuple[int, ...] = ()  # the numbers of shards that it can be cut into; (): any up to `most`
    halo_bytes: float = 0.0  # of a sample, that neighbours send each other before


@dataclass(frozen=True, slots=True)
class UnitCost:
    """A unit of a model: a layer, or a few operations between layers."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    forward: Seconds
    backward: Seconds
    saved_bytes: float = 0.0  # of a sample, kept for backward
    parameter_bytes: int = 0
    trained_bytes: int = 0  # of the parameters that are trained
    state_per_byte: float = 0.0  # bytes of optimizer state a byte of trained parameters
    update_s: float = 0.0
    for_weights: float = 0.5
    ways: tuple[CutWay, ...] = ()  # besides whole
    parameters: tuple[str, ...] = ()  # names; of tied ones the first
    forward_moment: MomentBytes = NO_BYTES  # beside what it keeps, while it runs: workspaces, what nobody keeps
    backward_moment: MomentBytes = NO_BYTES  # of its backward: gradients that come and go; of the last: the loss
    update_bytes: int = 0  # that the optimizer needs for a moment


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model's units in order, and the values between them."""

    units: tuple[UnitCost, ...]
    values: tuple[Value, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    samples: int  # in a batch
    ties: tuple[tuple[str, int], ...] = ()  # parameters that several units hold, and their bytes
    tied_units: tuple[tuple[int, ...], ...] = ()  # of each tie
    overheads: Overheads = NO_OVERHEADS  # beside the units
