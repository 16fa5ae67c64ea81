"""trace: which way a model is taken apart, and that the parts give what it gives."""

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.trace.by_hand import from_cuts
from gradtide.parallel.split.trace.check import checked
from gradtide.parallel.split.trace.exported import exported_graph
from gradtide.parallel.split.trace.graph import ready_graph
from gradtide.parallel.split.trace.graph_units import chain_of_graph
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.names import StateNames
from gradtide.parallel.split.trace.refuse import refuse_example, refuse_model
from gradtide.parallel.split.trace.sequential import from_sequential
from gradtide.parallel.split.trace.symbolic import CannotTrace, symbolic_graph
from gradtide.parallel.split.units import Chain

__all__ = ["trace"]


def trace(model: nn.Module, example: Any, cuts: Sequence[str] | None = None) -> Chain:
    """A model as a chain of units, which gives bit for bit what the model gives.

    `example` is a batch of its inputs: a tensor, a tuple (its arguments) or a dictionary (its keywords). The layers of
    an nn.Sequential are its units; other models are traced by torch.fx, or by torch.export where that fails. `cuts`
    names submodules before which to cut, of a model that calls its children one after the other.
    """
    refuse_model(model)
    batch, names = Example.of(model, example), StateNames.of(model)
    refuse_example(model, batch)
    if cuts is not None:
        return checked(from_cuts(model, cuts, batch, names), model, batch)
    chain = from_sequential(model, batch, names) or _from_graph(model, batch, names)
    return checked(chain, model, batch)


def _from_graph(model: nn.Module, example: Example, names: StateNames) -> Chain:
    how = "torch.fx"
    try:
        graph, attributes = symbolic_graph(model, example)
    except CannotTrace as error:
        how = "torch.export"
        graph, attributes = _export_instead(model, example, error)
    chain = chain_of_graph(ready_graph(graph, attributes, example), example, names, how)
    if not chain.units:
        raise ConfigError(f"{type(model).__name__} computes nothing that could be split")
    return chain


def _export_instead(model: nn.Module, example: Example, before: CannotTrace) -> tuple[fx.Graph, dict[str, Any]]:
    try:
        return exported_graph(model, example)
    except CannotTrace as error:
        where = before if str(error).startswith("inside torch") else error
        raise ConfigError(
            f"{type(model).__name__} can't be traced: {where}; write that line without looking at the tensors' values, "
            'or, if its children are called one after the other, say where to cut it, as in cuts=["block.4"]'
        ) from error
