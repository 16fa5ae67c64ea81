"""Operations between layers, as torch.fx has them: adds and the like follow equal slices, and so does flattening."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from gradtide.parallel.split.layers.elementwise import FOLLOWS, flattened
from gradtide.parallel.split.layers.registry import LayerPart, LayerWay, Slices, layer
from gradtide.schedule.step.costs import CutWay

__all__ = ["FunctionSlices"]

_ARITHMETIC = ("add", "sub", "mul", "truediv", "neg", "pos", "pow")
_NAMES = ("add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "rsqrt", "square", "abs", "clamp", "relu", "sigmoid")
FUNCTIONS: set[Callable[..., Any]] = {
    *(getattr(operator, name) for name in _ARITHMETIC),
    *(getattr(torch, name) for name in (*_NAMES, "tanh", "pow", "where", "maximum", "minimum")),
}
METHODS = {*_NAMES, "tanh", "pow", "contiguous", "clone"}


@layer(fx.GraphModule)
class FunctionSlices(LayerWay):
    """All that it reads has to be in the same slices."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, fx.GraphModule)
        return FOLLOWS if _is_elementwise(module.graph, _flattening(module.graph)) else None

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, fx.GraphModule)
        return flattened(part) if _flattening(module.graph) else part.given


def _is_elementwise(graph: fx.Graph, besides: list[fx.Node]) -> bool:
    """Tensors and numbers alone, element by element."""
    operations = [node for node in graph.nodes if node.op not in ("placeholder", "output") and node not in besides]
    return bool(operations or besides) and all(map(_is_elementwise_node, operations))


def _is_elementwise_node(node: fx.Node) -> bool:
    known = node.target in (FUNCTIONS if node.op == "call_function" else METHODS if node.op == "call_method" else ())
    values = (*node.args, *node.kwargs.values())
    return known and all(isinstance(value, (fx.Node, int, float, bool, type(None))) for value in values)


def _flattening(graph: fx.Graph) -> list[fx.Node]:
    """The nodes of a last x.view(x.size(0), -1), also with reshape or x.shape[0]; none: it doesn't end so."""
    last = next(iter(graph.output_node().all_input_nodes), None)
    if last is None or last.op != "call_method" or last.target not in ("view", "reshape") or len(last.users) != 1:
        return []
    if last.kwargs or len(last.args) != 3 or last.args[2] != -1 or not isinstance(last.args[1], fx.Node):
        return []
    rows = _asking_rows(last.args[1])
    return [last, *rows] if rows else []


def _asking_rows(node: fx.Node) -> list[fx.Node]:
    """The nodes that ask for the first length of a tensor, if that is what this one gives."""
    if node.op == "call_method" and node.target == "size":
        return [node] if node.args[1:] == (0,) and not node.kwargs else []
    if node.target is not operator.getitem or node.args[1] != 0 or not isinstance(node.args[0], fx.Node):
        return []
    shape = node.args[0]
    asked = (shape.target is getattr and shape.args[1] == "shape") or (
        shape.op == "call_method" and shape.target == "size" and len(shape.args) == 1
    )
    return [node, shape] if asked else []
