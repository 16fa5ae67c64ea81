"""What goes into a chain, through it and out of it, by name: the chain run in one place, without splitting it."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import DataError
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["arguments_of", "input_values", "output_of", "run_unit", "run_units", "samples_of"]


def arguments_of(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a batch is given to a model: a tuple or list as its arguments, a dictionary as its keywords, if they fit.

    Anything else, and what does not fit, is its one argument.
    """
    if isinstance(example, (tuple, list)) and type(example) in (tuple, list) and _fits(model, *example):
        return tuple(example), {}
    if isinstance(example, Mapping) and all(isinstance(key, str) for key in example) and _fits(model, **example):
        return (), dict(example)
    return (example,), {}


def _fits(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def input_values(chain: Chain, model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """A batch by the names of the chain's inputs; refused where it is made otherwise than the example was."""
    leaves, structure = pytree.tree_flatten(arguments_of(model, inputs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if len(tensors) != len(chain.inputs) or (chain.input_structure is not None and structure != chain.input_structure):
        raise DataError(
            f"a batch has {len(tensors)} tensors, made up otherwise than the {len(chain.inputs)} of the example that "
            "the model was traced with; give batches like it, or trace with one like these"
        )
    _refuse_others(chain, [leaf for leaf in leaves if not isinstance(leaf, Tensor)])
    named = dict(zip(chain.inputs, tensors, strict=True))
    _refuse_shapes(chain, named)
    return named


def _refuse_others(chain: Chain, rest: list[Any]) -> None:
    """What is no tensor became a part of the chain when the model was traced."""
    for before, now in zip(chain.example_rest, rest, strict=False):
        if before is not now and not (type(before) is type(now) and bool(before == now)):
            raise DataError(
                f"a batch comes with {now!r} where the one that the model was traced with had {before!r}, and the "
                "split model would go on with that; give it as a tensor, or wrap the model anew"
            )


def _refuse_shapes(chain: Chain, named: Mapping[str, Tensor]) -> None:
    samples = samples_of(named)
    for name, shape in chain.example_shapes.items():
        now = tuple(named[name].shape)
        own = 0 if name in chain.rowless else 1
        if chain.how == "torch.export" and now[own:] != shape[own:]:
            raise DataError(
                f"{name} has shape {now}, and had {shape} when torch.export traced the model, which holds for no other "
                "but of the samples; pad batches to one shape, or write the model so that torch.fx traces it"
            )
        if name in chain.rowless and now[:1] == (samples,) and now[:1] != shape[:1]:
            raise DataError(
                f"{name} has shape {now}, and had {shape} in the first batch: it can't be told whether it has a row a "
                "sample; give it one in all batches, or in none"
            )


def run_unit(unit: Unit, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a unit makes of what it reads."""
    made = unit.module(*(values[name] for name in unit.reads))
    if len(unit.writes) == 1 and isinstance(made, Tensor):
        return {unit.writes[0]: made}
    return dict(zip(unit.writes, made, strict=True))


def run_units(chain: Chain, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All values of a chain, given its inputs."""
    every = dict(values)
    for unit in chain.units:
        every |= run_unit(unit, every)
    return every


def output_of(chain: Chain, values: Mapping[str, Tensor]) -> Any:
    """What the model would have returned."""
    leaves = [chain.constants[name] if name in chain.constants else values[name] for name in chain.outputs]
    return leaves[0] if chain.structure is None else pytree.tree_unflatten(leaves, chain.structure)


def samples_of(values: Mapping[str, torch.Tensor]) -> int:
    """The samples of a batch: the rows of its first tensor that has any."""
    return next((len(value) for value in values.values() if value.dim()), 0)
