"""torch.fx: a graph of layers and functions, the same in training and in evaluation but for dropout."""

import operator
import traceback
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.nn import functional

from gradtide.errors import ConfigError
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.leaves import is_layer
from gradtide.parallel.split.trace.random_watch import torch_state
from gradtide.parallel.split.trace.rewrite import DROPOUTS, dropout_arguments

__all__ = ["CannotTrace", "attribute_of", "in_mode", "place_of", "said_at", "same_graph", "symbolic_graph"]


T = TypeVar("T")
_ATTENTIONS = (
    functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,  # as torch.export has it
)


class CannotTrace(Exception):
    """A way of tracing does not get through a model; says at which line of it, and why."""


class _SettableProxy(fx.Proxy):
    """Takes `x[index] = items` too."""

    def __setitem__(self, index: Any, items: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, items), {})


class _LayerTracer(fx.Tracer):
    """Layers are nodes of the graph; all other modules are traced through."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self._example = example

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_layer(m)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _SettableProxy(node, self)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """A node for each of the example's tensors; whatever else it has is as it is there."""
        nodes = [self.create_proxy("placeholder", name.replace(".", "_"), (), {}) for name in self._example.tensors]
        args, kwargs = self._example.arguments(nodes)
        return (lambda: root_fn(self.root, *args, **kwargs)), []


def symbolic_graph(model: nn.Module, example: Example) -> tuple[fx.Graph, dict[str, Any]]:
    """A graph and all it names. Refused where a model does something else in evaluation than in training."""
    drawn = torch_state()
    with torch.random.fork_rng(devices=[]):
        training, constants = in_mode([model], True, lambda: _traced(model, example))
        evaluating, _ = in_mode([model], False, lambda: _traced(model, example))
        if torch_state() != drawn:
            raise ConfigError(
                f"the forward of {type(model).__name__} draws random numbers of its own in torch, and a split model "
                "would go on with those it drew when it was taken apart; use nn.Dropout, or draw before the step and "
                "give it to the model as an input"
            )
    same_graph(training, evaluating)
    again, _ = in_mode([model], True, lambda: _traced(model, example))
    same_graph(again, evaluating)  # what it draws elsewhere, or reads off a clock, may be another one by now
    named = (node.target for node in training.nodes if node.op in ("call_module", "get_attr"))
    return training, {name: constants[name] if name in constants else attribute_of(model, name) for name in named}


def attribute_of(model: nn.Module, path: str) -> Any:
    """A module, parameter, buffer or anything else of a model, by its path."""
    found: Any = model
    for part in path.split("."):
        found = getattr(found, part)
    return found


Traced = tuple[fx.Graph, dict[str, Any]]  # with its constants, by name


def _traced(model: nn.Module, example: Example) -> Traced:
    attributes = set(vars(model))
    tracer = _LayerTracer(example)
    try:
        graph = tracer.trace(model)
    except ConfigError:
        raise
    except Exception as error:
        raise CannotTrace(said_at(error)) from error
    finally:
        constants = {name: getattr(model, name) for name in set(vars(model)) - attributes}
        for name in constants:  # torch.fx has put them there
            delattr(model, name)
    return graph, constants


def in_mode(roots: Sequence[nn.Module], training: bool | Callable[[nn.Module], bool], action: Callable[[], T]) -> T:
    """What an action gives while modules are in training or in evaluation, each as this says."""
    modes = [(module, module.training) for root in roots for module in root.modules()]
    try:
        for module, _ in modes:
            module.training = training if isinstance(training, bool) else training(module)
        return action()
    finally:
        for module, mode in modes:
            module.training = mode


def said_at(error: BaseException) -> str:
    """The last line of the model's own code on the way to an error, and the error's first sentence."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{_user_line(error)}: {said.partition('. ')[0].rstrip('.')}"


def _user_line(error: BaseException) -> str:
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[3]))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((*ours, "<"))]
    if not theirs:
        return "inside torch"
    return f"{theirs[-1].filename}:{theirs[-1].lineno} `{(theirs[-1].line or '').strip()}`"


def same_graph(training: fx.Graph, evaluating: fx.Graph) -> None:
    """Raises what a user can do where a model computes something else in training than in evaluation.

    Dropout's `training` is what may differ: such nodes become layers, which follow the mode.
    """
    matching: dict[Any, Any] = {}
    for one, other in zip_longest(training.nodes, evaluating.nodes):
        if one is not None:
            _refuse_random(one)
        if other is not None:
            _refuse_random(other)
        if one is None or other is None or (one.op, one.target) != (other.op, other.target):
            raise _differs(one or other)
        matching[other] = one
        args, kwargs = fx.map_arg((other.args, dict(other.kwargs)), matching.__getitem__)
        if one.target in DROPOUTS:
            _refuse_constant_dropout(one, other)
        elif (args, kwargs) != (one.args, dict(one.kwargs)):
            raise _differs(one)


def _differs(node: fx.Node) -> ConfigError:
    return ConfigError(
        f"{place_of(node)} is not the same in training and in evaluation; write what differs as a layer of torch, "
        "such as nn.Dropout or nn.BatchNorm2d"
    )


def _refuse_random(node: fx.Node) -> None:
    if node.target in (functional.rrelu, torch.rrelu):
        raise ConfigError(f"{place_of(node)} draws random numbers in training; use another function")
    if node.target in _ATTENTIONS:
        dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        if dropout != 0:
            raise ConfigError(
                f"{place_of(node)} is scaled_dot_product_attention with dropout_p={dropout}, whose mask nothing can "
                "reproduce on another device; leave dropout_p out and put nn.Dropout after the attention, or, of "
                'Hugging Face\'s transformers, make the model with attn_implementation="eager"'
            )


def _refuse_constant_dropout(training: fx.Node, evaluating: fx.Node) -> None:
    modes = tuple(dropout_arguments(node)[1] for node in (training, evaluating))
    if modes not in ((True, False), (False, False)):
        raise ConfigError(
            f"{place_of(training)} drops in evaluation too; write F.dropout(x, p, training=self.training) or nn.Dropout"
        )


def place_of(node: fx.Node) -> str:
    """Where in the model a node comes from, for a reader."""
    path = _module_path(node)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        name = name.partition(".")[0]  # without which of its kind it is
    return f"{path}.{name}" if path and node.op != "call_module" else name


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack.values()))[0] if stack else ""
