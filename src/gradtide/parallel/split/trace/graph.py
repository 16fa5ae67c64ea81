"""A graph made ready to be cut: functions become layers, nothing works in place, tuples are taken apart."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.rewrite import DROPOUTS, dropout_arguments, layer_of, not_in_place, out_of_place
from gradtide.parallel.split.trace.symbolic import place_of

__all__ = ["TracedGraph", "ready_graph"]

# What may be asked of a tensor that is no tensor: never its values.
_OF_A_TENSOR = {"shape", "device", "dtype", "ndim", "layout", "is_cuda", "itemsize"}
_METHODS = {"size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "type", "get_device"}
_FUNCTIONS = {torch.is_floating_point, torch.is_complex, torch.numel, torch.ops.aten.sym_size.int, len}


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A graph, the modules and tensors that it names, and which of its nodes are what."""

    graph: fx.Graph
    attributes: Mapping[str, Any]
    tensors: frozenset[fx.Node]  # nodes that give one tensor
    repeated: frozenset[fx.Node]  # nodes that everyone who reads them computes again


def ready_graph(graph: fx.Graph, attributes: dict[str, Any], example: Example) -> TracedGraph:
    """`attributes` are the modules, parameters, buffers and constants that the graph names."""
    out_of_place(graph)
    _make_layers(graph, attributes)
    for target, found in attributes.items():
        if isinstance(found, nn.Module):
            attributes[target] = not_in_place(found)
    values = _values(graph, attributes, example)
    _take_apart(graph, values)
    for node in graph.nodes:
        _refuse_reading(node, values)
    tensors = frozenset(node for node in graph.nodes if isinstance(values.get(node), Tensor))
    return TracedGraph(graph, attributes, tensors, _repeated(graph, attributes, tensors))


def _make_layers(graph: fx.Graph, attributes: dict[str, Any]) -> None:
    for node in graph.nodes:
        if node.target in DROPOUTS:
            probability, drops = dropout_arguments(node)
            layer: nn.Module | None = DROPOUTS[node.target](probability) if drops else nn.Identity()
        else:
            layer = layer_of(node)
        if layer is not None:
            target = _unused(place_of(node), attributes)
            attributes[target] = layer
            node.op, node.target, node.args, node.kwargs = "call_module", target, (node.args[0],), {}


def _unused(name: str, attributes: Mapping[str, Any]) -> str:
    found, number = name, 1
    while any(target == found or target.startswith(f"{found}.") for target in attributes):
        number += 1
        found = f"{name}_{number}"
    return found


def _values(graph: fx.Graph, attributes: Mapping[str, Any], example: Example) -> dict[fx.Node, Any]:
    """What every node gives for the example, in evaluation."""
    module = fx.GraphModule(dict(attributes), graph)
    values: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            recorder = Recorder(module, garbage_collect_values=False, graph=graph)
            recorder.run(*example.first(2).values(), enable_io_processing=False)
    finally:
        for part, mode in modes:
            part.training = mode
    return values


def _take_apart(graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
    """Whoever reads a tuple of tensors reads the tensors in it."""
    for node in list(graph.nodes):
        value = values.get(node)
        if node._erased or node.op in ("placeholder", "output") or isinstance(value, Tensor) or not _has_tensors(value):
            continue
        parts = _parts(graph, node, value, values)
        for user in list(node.users):
            if user in values and user not in _nodes_in(parts):
                _give_parts(user, node, value, parts)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


def _parts(graph: fx.Graph, node: fx.Node, value: Any, values: dict[fx.Node, Any]) -> Any:
    """A node for each tensor in a node's value, in tuples, lists and dictionaries as they are there."""
    if isinstance(value, Tensor):
        return node
    if not _has_tensors(value):
        return value
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    found = {}
    for key in keys:
        if not _has_tensors(value[key]):
            found[key] = value[key]
            continue
        with graph.inserting_after(node):
            child = graph.call_function(operator.getitem, (node, key))
        child.meta = dict(node.meta)
        values[child] = value[key]
        found[key] = _parts(graph, child, value[key], values)
    return found if isinstance(value, dict) else (list if isinstance(value, list) else tuple)(found.values())


def _nodes_in(parts: Any) -> set[fx.Node]:
    nodes = {leaf for leaf in pytree.tree_leaves(parts) if isinstance(leaf, fx.Node)}
    while True:
        more = {parent for node in nodes for parent in node.all_input_nodes if node.target is operator.getitem} - nodes
        if not more:
            return nodes
        nodes |= more


def _give_parts(user: fx.Node, node: fx.Node, value: Any, parts: Any) -> None:
    if user.target is operator.getitem and user.args[0] is node and not isinstance(user.args[1], fx.Node):
        found = parts[user.args[1]]
    elif user.target is getattr and user.args[0] is node:
        wanted = getattr(value, str(user.args[1]))
        found = next(part for part, own in zip(parts, value, strict=True) if own is wanted)
    else:
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda n: parts if n is node else n)
        return
    if isinstance(found, fx.Node):
        user.replace_all_uses_with(found)
    else:
        for reader in list(user.users):
            _give_parts(reader, user, value[user.args[1]], found)
    user.graph.erase_node(user)


def _refuse_reading(node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
    """A number that is read out of a tensor is of a part of the batch alone, once it is split."""
    if node.op not in ("call_function", "call_method") or _has_tensors(values.get(node)):
        return
    if not any(isinstance(values.get(read), Tensor) for read in node.all_input_nodes):
        return
    allowed = node.target in _FUNCTIONS or (node.op == "call_method" and node.target in _METHODS)
    if not allowed and not (node.target is getattr and node.args[1] in _OF_A_TENSOR) and node.users:
        raise ConfigError(
            f"{place_of(node)} reads a number out of a tensor, which would differ from micro-batch to micro-batch; "
            "keep it a tensor"
        )


def _repeated(graph: fx.Graph, attributes: Mapping[str, Any], tensors: frozenset[fx.Node]) -> frozenset[fx.Node]:
    """Sizes and the like, and tensors made of nothing else: masks, places."""
    repeated: set[fx.Node] = set()
    returned = {node for node in graph.nodes for user in node.users if user.op == "output"}
    for node in graph.nodes:
        if node.op == "get_attr":
            if not isinstance(attributes[node.target], nn.Parameter):
                repeated.add(node)
        elif node.op in ("call_function", "call_method"):
            made_of_sizes = bool(repeated.issuperset(node.all_input_nodes)) and node not in returned
            if made_of_sizes or (node not in tensors and not _gives_tensors(node, tensors)):
                repeated.add(node)
    return frozenset(repeated)


def _gives_tensors(node: fx.Node, tensors: frozenset[fx.Node]) -> bool:
    """Its parts are taken out of it, right behind it."""
    return any(
        user in tensors or _gives_tensors(user, tensors) for user in node.users if user.target is operator.getitem
    )
