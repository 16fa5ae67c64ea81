"""Functions of a graph that are layers become layers; operations in place change a copy, or nothing.

So that a value is never changed once another unit may read it, and so that only modules have to be known by those
who cut a layer or seed its dropout.
"""

import copy
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

__all__ = ["DROPOUTS", "dropout_arguments", "function_arguments", "layer_of", "not_in_place", "out_of_place"]

# Of functions whose further arguments are constants: the layer that computes the same.
_LAYERS: dict[Any, type[nn.Module]] = {
    functional.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    functional.relu6: nn.ReLU6,
    functional.gelu: nn.GELU,
    functional.silu: nn.SiLU,
    functional.elu: nn.ELU,
    functional.leaky_relu: nn.LeakyReLU,
    functional.softplus: nn.Softplus,
    functional.hardtanh: nn.Hardtanh,
    functional.tanh: nn.Tanh,
    torch.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    functional.sigmoid: nn.Sigmoid,
    torch.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
    torch.ops.aten.relu.default: nn.ReLU,
    torch.ops.aten.gelu.default: nn.GELU,
    torch.ops.aten.tanh.default: nn.Tanh,
    torch.ops.aten.sigmoid.default: nn.Sigmoid,
    functional.max_pool2d: nn.MaxPool2d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    functional.local_response_norm: nn.LocalResponseNorm,
}
DROPOUTS: dict[Any, type[nn.Module]] = {
    functional.dropout: nn.Dropout,
    torch.dropout: nn.Dropout,
    torch.ops.aten.dropout.default: nn.Dropout,
    functional.dropout1d: nn.Dropout1d,
    functional.dropout2d: nn.Dropout2d,
    functional.dropout3d: nn.Dropout3d,
    functional.alpha_dropout: nn.AlphaDropout,
    functional.feature_alpha_dropout: nn.FeatureAlphaDropout,
}
_FLATTEN = (torch.flatten, "flatten")
_IN_PLACE = {
    getattr(operator, f"i{name}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor")
    if hasattr(operator, f"i{name}")
} | {operator.iand: operator.and_, operator.ior: operator.or_}


def on_a_copy(change: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes its first argument, on a copy of it."""

    def changed_copy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return change(tensor.clone(), *args, **kwargs)

    return changed_copy


def with_items(tensor: Tensor, index: Any, items: Any) -> Tensor:
    """`tensor[index] = items`, on a copy of it."""
    changed = tensor.clone()
    changed[index] = items
    return changed


def not_in_place(layer: nn.Module) -> nn.Module:
    """A layer that leaves what it reads as it was: itself, or one like it without `inplace`."""
    if not getattr(layer, "inplace", False):
        return layer
    other: Any = copy.copy(layer)
    other.inplace = False
    return cast(nn.Module, other)


def out_of_place(graph: fx.Graph) -> None:
    """Whoever reads a tensor after it was changed in place reads what came out instead."""
    for node in list(graph.nodes):
        changed = _changed_by(node)
        if changed is not None:
            _make_pure(node)
            behind = False
            for other in graph.nodes:
                if behind:
                    other.replace_input_with(changed, node)
                behind = behind or other is node


def _changed_by(node: fx.Node) -> fx.Node | None:
    """What a node changes, where it works in place."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return None
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_method" and name.endswith("_") and not name.endswith("__"):
        return None if name == "requires_grad_" else first
    if node.op != "call_function":
        return None
    if isinstance(node.target, torch._ops.OpOverload):
        return first if node.target._schema.is_mutable else None
    in_place = node.target in _IN_PLACE or node.target is operator.setitem
    named = name.endswith("_") and not name.startswith("_") and name[:-1] not in ("and", "or", "not")
    return first if in_place or named or _says_inplace(node) else None


def _says_inplace(node: fx.Node) -> bool:
    """F.relu(x, True), F.relu(x, inplace=True)."""
    return node.kwargs.get("inplace") is True or function_arguments(node).get("inplace") is True


def _make_pure(node: fx.Node) -> None:
    target: Any = node.target
    if node.op == "call_method":
        node.op, node.target = "call_function", on_a_copy(getattr(Tensor, target))
    elif target in _IN_PLACE:
        node.target = _IN_PLACE[target]
    elif target is operator.setitem:
        node.target = with_items
    elif _says_inplace(node) and function_arguments(node):
        arguments = function_arguments(node) | {"inplace": False}
        node.args, node.kwargs = node.args[:1], {k: v for k, v in arguments.items() if v is not node.args[0]}
    elif node.kwargs.get("inplace"):
        node.kwargs = node.kwargs | {"inplace": False}
    else:
        node.target = _functional(target) or on_a_copy(target)


def _functional(target: Any) -> Any:
    """Of torch's own operations: the one that gives what this changes; None where there is none."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    name, _, overload = target.__name__.partition(".")
    found = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(found, overload, None)


def function_arguments(node: fx.Node) -> dict[str, Any]:
    """What a call of a function gives it, by name; empty where torch does not say the names."""
    try:
        signature = inspect.signature(node.target)  # type: ignore[arg-type]
        bound = signature.bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def dropout_arguments(node: fx.Node) -> tuple[float, bool]:
    """Its probability, and whether it drops."""
    named: dict[str, Any] = function_arguments(node)
    if "p" not in named:  # torch.dropout(input, p, train)
        named = {**dict(zip(("input", "p", "train"), node.args, strict=False)), **node.kwargs}
    return named["p"], bool(named.get("training", named.get("train")))


def layer_of(node: fx.Node) -> nn.Module | None:
    """The layer that computes what a function or method does with one tensor; None: there is none."""
    if node.op not in ("call_function", "call_method") or len(node.all_input_nodes) != 1:
        return None
    if node.args[:1] != (node.all_input_nodes[0],):
        return None
    if node.target in _FLATTEN:
        start, end = _flatten_dims(node.args[1:], node.kwargs)
        return nn.Flatten(start, end) if isinstance(start, int) and isinstance(end, int) else None
    kind = _LAYERS.get(node.target)
    if kind is None:
        return None
    return _built(kind, node)


def _flatten_dims(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    start = args[0] if args else 0
    end = args[1] if len(args) > 1 else -1
    return kwargs.get("start_dim", start), kwargs.get("end_dim", end)


def _built(kind: type[nn.Module], node: fx.Node) -> nn.Module | None:
    """The layer with a function's constants, by their names, or by their places where it has none."""
    named = function_arguments(node)
    args: tuple[Any, ...] = () if named else node.args[1:]
    given = {k: v for k, v in (named or node.kwargs).items() if v is not node.args[0] and k != "inplace"}
    if given.pop("return_indices", False) or (kind is nn.MaxPool2d and len(args) > 4):
        return None  # from its fifth argument on, the layer has another order than the function
    try:
        return kind(*args, **given)
    except (TypeError, ValueError):
        return None
