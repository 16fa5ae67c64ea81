"""A model as a chain of units, as it was traced: what runs, what it reads and what it makes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

__all__ = ["Chain", "Unit"]


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A layer, or a few operations between layers: `module(*reads)` gives one value, or a tuple with one a write."""

    name: str
    module: nn.Module  # a layer of the model itself, or a graph of operations with the layers in it
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    parameters: Mapping[str, str] = field(
        default_factory=dict
    )  # the module's name of each -> the model's (of tied ones the first)
    buffers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Units in the order they run. A value is named once and never changed in place across units."""

    units: tuple[Unit, ...]
    inputs: tuple[str, ...]  # the model's, in the order of its forward
    outputs: tuple[str, ...]  # the leaves of what it returns
    structure: Any = None  # torch.utils._pytree's TreeSpec of what it returns; None: one tensor
    input_structure: Any = None  # TreeSpec of (args, kwargs) of its forward; None: one tensor
    constants: Mapping[str, Any] = field(default_factory=dict)  # of outputs that are no tensors, such as None
    how: str = ""  # traced: "Sequential", "torch.fx", "torch.export", or "cuts"
    tied: Mapping[str, str] = field(default_factory=dict)  # further names of tied parameters -> their first
    rowless: frozenset[str] = frozenset()  # inputs and values that have no row a sample, whatever their length
    example_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of the inputs, as traced
    example_rest: tuple[Any, ...] = ()  # what the model was given besides tensors
    rounded: tuple[str, ...] = ()  # parameters whose gradient on the example is nothing but rounding
