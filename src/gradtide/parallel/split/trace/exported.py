"""torch.export: a graph of the operations that a model ran, with the layers that they came from put back in."""

import inspect
import logging
import operator
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.chain_values import samples_of
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.leaves import is_layer
from gradtide.parallel.split.trace.symbolic import CannotTrace, attribute_of, in_mode, said_at, same_graph

__all__ = ["exported_graph"]


def exported_graph(model: nn.Module, example: Example) -> tuple[fx.Graph, dict[str, Any]]:
    """A graph and all it names, for any number of samples."""
    training, attributes = in_mode([model], True, lambda: _exported(model, example))
    evaluating, _ = in_mode([model], False, lambda: _exported(model, example))
    same_graph(training, evaluating)
    return training, attributes


def _exported(model: nn.Module, example: Example) -> tuple[fx.Graph, dict[str, Any]]:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        program = _export(model, example)
    except ConfigError:
        raise
    except Exception as error:
        raise CannotTrace(said_at(error)) from error
    finally:
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])
    module: Any = program.module()
    graph = _copied(module.graph, program.call_spec.out_spec, example)
    _put_layers_back(graph, model)
    _forget_unused(graph)
    named = [str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")]
    own = {*dict(model.named_modules()), *dict(model.named_parameters(remove_duplicate=False))}
    own |= set(dict(model.named_buffers(remove_duplicate=False)))
    return graph, {name: attribute_of(model if name in own else module, name) for name in named}


def _export(model: nn.Module, example: Example) -> torch.export.ExportedProgram:
    samples = max(3, min(8, samples_of(example.tensors)))  # of 0 and 1 torch takes it that they never change
    args, kwargs = example.arguments(list(example.first(samples).values()))
    batch = torch.export.Dim("batch", min=1)

    def shape_of(leaf: Any) -> Any:
        batched = isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == samples
        return {0: batch} if batched else None

    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    shapes = {name: pytree.tree_map(shape_of, value) for name, value in given.items()}
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch tells of what it can't do at length, on its own
    try:
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    finally:
        logging.disable(before)


def _copied(graph: fx.Graph, outputs: Any, example: Example) -> fx.Graph:
    """Without torch's own checks and without inputs that are no tensors; what is returned as the model returns it."""
    copied, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    placeholders = (node for node in graph.nodes if node.op == "placeholder")
    tensors = [node for node, leaf in zip(placeholders, example.leaves, strict=True) if leaf in example.tensors]
    for node in graph.nodes:
        if node.op == "output":
            returned = fx.map_arg(node.args[0], copies.__getitem__)
            copied.output(pytree.tree_unflatten(list(returned), outputs))
        elif (node.op != "placeholder" or node in tensors) and node.target != "_guards_fn":
            copies[node] = copied.node_copy(node, copies.__getitem__)
    return copied


def _put_layers_back(graph: fx.Graph, model: nn.Module) -> None:
    """Operations that are all a layer does with one tensor become that layer."""
    for path, nodes in list(_calls(graph, model)):
        layer = model.get_submodule(path)
        inside = set(nodes)
        reads = {
            r for n in nodes for r in n.all_input_nodes if r not in inside and r.op != "get_attr" and _is_tensor(r)
        }
        writes = [node for node in nodes if any(user not in inside for user in node.users)]
        if len(reads) == 1 and len(writes) == 1 and _takes_one(layer):
            with graph.inserting_before(writes[0]):
                call = graph.call_module(path, (reads.pop(),))
            call.meta = dict(writes[0].meta)
            writes[0].replace_all_uses_with(call)
            for node in reversed(nodes):
                graph.erase_node(node)


def _calls(graph: fx.Graph, model: nn.Module) -> Iterator[tuple[str, list[fx.Node]]]:
    """Nodes of one call of a layer, one after the other, and the layer's path."""
    modules = {path: module for path, module in model.named_modules() if path}
    last, nodes = "", list[fx.Node]()
    for node in [*graph.nodes, None]:
        stack = {} if node is None else node.meta.get("nn_module_stack") or {}
        if node is not None and node.op == "get_attr":
            continue
        call = next((key for key, (path, _) in stack.items() if path in modules and is_layer(modules[path])), "")
        if call != last and nodes:
            yield nodes[0].meta["nn_module_stack"][last][0], nodes
            nodes = []
        last = call
        if call and node is not None:
            nodes.append(node)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _takes_one(layer: nn.Module) -> bool:
    try:
        inspect.signature(layer.forward).bind(None)
    except TypeError:
        return False
    return True


def _forget_unused(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        pure = node.op == "get_attr" or (
            node.op == "call_function" and (node.target is operator.getitem or _pure(node))
        )
        if pure and not node.users:
            graph.erase_node(node)


def _pure(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable
