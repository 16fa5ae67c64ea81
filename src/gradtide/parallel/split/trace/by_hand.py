"""Submodules that the user named: a model whose forward calls its children one after the other, cut before each."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.names import StateNames
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["from_cuts"]


def from_cuts(model: nn.Module, cuts: Sequence[str], example: Example, names: StateNames) -> Chain:
    """A unit of all children before the first cut, one from there to the second, and so on."""
    if len(example.tensors) != 1 or len(example.leaves) != 1:
        raise ConfigError("cuts= is for models that take one tensor; this example has others beside it")
    steps = list(_children(model, tuple(cuts)))
    paths = [path for path, _ in steps]
    for cut in cuts:
        if cut not in paths:
            raise ConfigError(f"cuts={list(cuts)}: the model has no child {cut!r}; it has {', '.join(paths)}")
    starts = sorted({0, *(paths.index(cut) for cut in cuts)})
    (value,) = example.tensors
    units = []
    for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
        module = _in_a_row(steps[start:end])
        parameters, buffers = names.of_unit(module)
        units.append(Unit(paths[start], module, (value,), (paths[start],), parameters, buffers))
        value = paths[start]
    return Chain(
        tuple(units),
        tuple(example.tensors),
        (value,),
        input_structure=example.structure,
        how="cuts",
        tied=names.tied,
    )


def _children(model: nn.Module, cuts: tuple[str, ...], path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """In the order they were registered; of those that a cut is inside, their own children."""
    for name, child in model._modules.items():
        if child is None:
            continue
        has_no_forward = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if has_no_forward or any(cut.startswith(f"{path}{name}.") for cut in cuts):
            yield from _children(child, cuts, f"{path}{name}.")
        else:
            yield f"{path}{name}", child


def _in_a_row(steps: Sequence[tuple[str, nn.Module]]) -> nn.Module:
    if len(steps) == 1:
        return steps[0][1]
    return nn.Sequential(OrderedDict((path.replace(".", "_"), child) for path, child in steps))
