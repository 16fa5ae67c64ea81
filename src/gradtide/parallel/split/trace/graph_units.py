"""A graph of layers and functions cut into units: one a layer, and one for the functions between two layers.

Only tensors go from unit to unit. Sizes and the like are computed again by whoever reads them.
"""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import fx, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.trace.graph import TracedGraph
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.trace.names import StateNames
from gradtide.parallel.split.trace.symbolic import place_of
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["chain_of_graph"]

_MOVES = {"transpose", "permute", "view", "reshape", "unflatten", "contiguous", "unsqueeze", "squeeze", "getitem"}


@dataclass(slots=True)
class _UnitDraft:
    """Nodes that become one unit, in order."""

    nodes: list[fx.Node]
    name: str = ""
    reads: tuple[fx.Node, ...] = ()
    writes: tuple[fx.Node, ...] = ()


def chain_of_graph(traced: TracedGraph, example: Example, names: StateNames, how: str) -> Chain:
    """The chain that computes what the graph does."""
    drafts = _drafts(traced)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    values = dict(zip(placeholders, example.tensors, strict=True))
    taken = set(example.tensors)
    for draft in drafts:
        draft.name = _unique(_name(draft), taken)
        for place, node in enumerate(draft.writes):
            values[node] = draft.name if len(draft.writes) == 1 else f"{draft.name}.{place}"
    outputs, structure, constants = _outputs(traced, values)
    return Chain(
        units=tuple(_unit(traced, draft, values, names) for draft in drafts),
        inputs=tuple(example.tensors),
        outputs=outputs,
        structure=structure,
        input_structure=example.structure,
        constants=constants,
        how=how,
        tied=names.tied,
    )


def _drafts(traced: TracedGraph) -> list[_UnitDraft]:
    """Without those that nobody reads, but for layers: one may keep statistics."""
    drafts: list[_UnitDraft] = []
    layer_before = True
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node in traced.repeated:
            continue
        is_part = node.target is operator.getitem and node.args[0] not in traced.tensors  # right behind the whole
        if is_part or not (layer_before or node.op == "call_module"):
            drafts[-1].nodes.append(node)
        else:
            drafts.append(_UnitDraft([node]))
            layer_before = node.op == "call_module"
    for draft in drafts:
        draft.reads = _reads(traced, draft.nodes)
        draft.writes = _writes(traced, draft.nodes)
    return [draft for draft in drafts if draft.writes]


def _reads(traced: TracedGraph, nodes: list[fx.Node]) -> tuple[fx.Node, ...]:
    """The tensors from elsewhere that they need, also for what they compute again."""
    found: dict[fx.Node, None] = {}
    waiting = [read for node in nodes for read in node.all_input_nodes]
    while waiting:
        node = waiting.pop(0)
        if node in traced.repeated:
            waiting.extend(node.all_input_nodes)
        elif node not in nodes and node.op != "get_attr":
            found[node] = None
    return tuple(found)


def _writes(traced: TracedGraph, nodes: list[fx.Node]) -> tuple[fx.Node, ...]:
    """The tensors that others need; of a layer that nobody needs, all it makes."""
    inside = set(nodes)
    made = [node for node in nodes if node in traced.tensors]
    needed = tuple(node for node in made if any(_needs(traced, user, inside) for user in node.users))
    return needed or (tuple(made) if nodes[0].op == "call_module" else ())


def _needs(traced: TracedGraph, user: fx.Node, inside: set[fx.Node]) -> bool:
    if user in traced.repeated:
        return any(_needs(traced, further, inside) for further in user.users)
    return user not in inside


def _name(draft: _UnitDraft) -> str:
    """A layer's own; else the module that the functions are all in, and the last of them."""
    layer = next((node for node in draft.nodes if node.op == "call_module"), None)
    if layer is not None:
        return str(layer.target)
    places = [place_of(node).rpartition(".") for node in draft.nodes]
    telling = [last for *_, last in places if last not in _MOVES] or [places[-1][-1]]
    common = _common_path([path.split(".") if path else [] for path, *_ in places])
    return ".".join([*common, telling[-1]])


def _common_path(paths: list[list[str]]) -> list[str]:
    same = (set(parts) for parts in zip(*paths, strict=False))
    return [parts.pop() for parts in takewhile(lambda parts: len(parts) == 1, same)]


def _unique(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}:{number}"
    taken.add(found)
    return found


def _unit(traced: TracedGraph, draft: _UnitDraft, values: Mapping[fx.Node, str], names: StateNames) -> Unit:
    module = _plain_layer(traced, draft) or _graph_module(traced, draft)
    parameters, buffers = names.of_unit(module)
    reads, writes = (tuple(values[node] for node in nodes) for nodes in (draft.reads, draft.writes))
    return Unit(draft.name, module, reads, writes, parameters, buffers)


def _plain_layer(traced: TracedGraph, draft: _UnitDraft) -> nn.Module | None:
    """The layer itself, where that and nothing else is what the unit does."""
    (node, *others) = draft.nodes
    if node.op != "call_module" or others or node.kwargs or node.args != draft.reads:
        return None
    layer: nn.Module = traced.attributes[str(node.target)]
    return layer


def _graph_module(traced: TracedGraph, draft: _UnitDraft) -> nn.Module:
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"read{place}") for place, node in enumerate(draft.reads)}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            for read in node.all_input_nodes:
                copied(read)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    for node in draft.nodes:
        copied(node)
    written = tuple(copies[node] for node in draft.writes)
    graph.output(written[0] if len(written) == 1 else written)
    return fx.GraphModule(_named_in(graph.nodes, traced.attributes), graph, class_name="FunctionUnit")


def _named_in(nodes: Iterable[fx.Node], attributes: Mapping[str, Any]) -> dict[str, Any]:
    wanted = (str(node.target) for node in nodes if node.op in ("call_module", "get_attr"))
    return {name: attributes[name] for name in wanted}


def _outputs(traced: TracedGraph, values: Mapping[fx.Node, str]) -> tuple[tuple[str, ...], Any, dict[str, Any]]:
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    leaves, structure = pytree.tree_flatten(_plain(output.args[0]))
    names, constants = [], {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, fx.Node) and leaf not in values:
            raise ConfigError(
                f"the model returns {place_of(leaf)}, which is neither a tensor nor a constant; return tensors alone"
            )
        if isinstance(leaf, fx.Node):
            names.append(values[leaf])
        else:
            names.append(f"constant {place}")
            constants[names[-1]] = leaf
    return tuple(names), None if isinstance(output.args[0], fx.Node) else structure, constants


def _plain(value: Any) -> Any:
    """With dictionaries and lists as the model had them: a graph keeps classes of its own."""
    if isinstance(value, dict):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value))
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(map(_plain, value))
    return value
