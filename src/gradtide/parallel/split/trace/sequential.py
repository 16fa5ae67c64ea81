"""nn.Sequential: its layers, and those of such within it, are the units. A layer alone is one."""

from collections.abc import Iterator

from torch import nn

from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.leaves import is_layer
from gradtide.parallel.split.trace.names import StateNames
from gradtide.parallel.split.trace.rewrite import not_in_place
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["from_sequential"]


def from_sequential(model: nn.Module, example: Example, names: StateNames) -> Chain | None:
    """None: it is neither a Sequential of layers nor a layer, or takes more than one tensor."""
    if len(example.tensors) != 1 or len(example.leaves) != 1:
        return None
    layers = list(_layers(model)) if type(model) is nn.Sequential else [("model", model)]
    if not layers or not all(is_layer(layer) for _, layer in layers):
        return None
    (value,) = example.tensors
    units = []
    for name, layer in layers:
        parameters, buffers = names.of_unit(layer)
        units.append(Unit(name, not_in_place(layer), (value,), (name,), parameters, buffers))
        value = name
    return Chain(tuple(units), tuple(example.tensors), (value,), how="Sequential", tied=names.tied)


def _layers(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in model._modules.items():  # named_children() leaves out a layer that comes again
        if type(child) is nn.Sequential:
            yield from _layers(child, f"{path}{name}.")
        elif child is not None:
            yield f"{path}{name}", child
