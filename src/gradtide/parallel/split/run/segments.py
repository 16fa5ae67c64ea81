"""One piece of autograd: a segment's forward, and its backward from the gradients of what it made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.local import LocalSegment, LocalUnit
from gradtide.parallel.split.run.speaking.communicator import Packet

__all__ = ["Recording", "evaluate", "record"]


@dataclass(slots=True, eq=False)
class Recording:
    """What is kept of a forward until its backward: the inputs as leaves, and the ends of the graph.

    The outputs themselves are not: where backward needs them, autograd keeps them. `edges` is None where the segment
    is to be computed again.
    """

    segment: LocalSegment
    leaves: dict[str, Packet]
    edges: dict[str, GradientEdge] | None

    def backward(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients of what the segment read. Those of parameters are added to theirs."""
        edges = self._recompute() if self.edges is None else self.edges
        wanted = [name for name in edges if name in gradients]
        if wanted:
            torch.autograd.backward([edges[name] for name in wanted], [gradients[name] for name in wanted])
        found = {}
        for name, leaf in self.leaves.items():
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad is not None:
                found[name] = leaf.grad
                leaf.grad = None
        return found

    def _recompute(self) -> dict[str, GradientEdge]:
        """Once more, now for its graph. What modules count and remember they have from the first time."""
        before = [(buffer, buffer.clone()) for unit in self.segment.units for buffer in unit.module.buffers()]
        with torch.enable_grad():
            made = _run(self.segment, self.leaves)
        for buffer, value in before:
            buffer.data.copy_(value)  # autograd may have kept it: it need not know that it was put back
        return _edges(made)


def record(
    segment: LocalSegment, values: Mapping[str, Packet], *, recompute: bool
) -> tuple[Recording, dict[str, Packet]]:
    """Runs it for training; also returns what it made, whose requires_grad says whether a gradient is wanted."""
    leaves = {name: _leaf(values[name]) for name in segment.reads}
    if not recompute:
        with torch.enable_grad():
            made = _run(segment, leaves)
        return Recording(segment, leaves, _edges(made)), {name: _cut_off(value) for name, value in made.items()}
    with torch.no_grad():
        made = _run(segment, leaves)
    trained = any(_wants(leaf) for leaf in leaves.values()) or any(
        parameter.requires_grad for unit in segment.units for parameter in unit.module.parameters()
    )
    return Recording(segment, leaves, None), {name: _marked(value, trained) for name, value in made.items()}


def evaluate(segment: LocalSegment, values: Mapping[str, Packet]) -> dict[str, Packet]:
    """Runs it for what it makes."""
    with torch.no_grad():
        return _run(segment, {name: values[name] for name in segment.reads})


def _run(segment: LocalSegment, reads: Mapping[str, Packet]) -> dict[str, Any]:
    there: dict[str, Any] = dict(reads)
    for unit, ends in zip(segment.units, segment.ends, strict=True):
        given = [there[name] for name in unit.reads]
        versions = [value._version if isinstance(value, Tensor) else 0 for value in given]
        made = unit.module(*given)
        if versions != [value._version if isinstance(value, Tensor) else 0 for value in given]:
            raise ConfigError(
                f"{unit.name} changes what it reads in place, and others read that too; use the operation that does not"
            )
        there.update(_named(unit, made))
        for name in ends:
            there.pop(name, None)
    return {name: there[name] for name in segment.writes}


def _named(unit: LocalUnit, made: Any) -> dict[str, Any]:
    if len(unit.writes) == 1:
        return {unit.writes[0]: made}
    values: Sequence[Any] = tuple(made)
    return dict(zip(unit.writes, values, strict=True))


def _leaf(value: Packet) -> Packet:
    return value.detach().requires_grad_() if _wants(value) and isinstance(value, Tensor) else value


def _wants(value: Packet) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _edges(made: Mapping[str, Any]) -> dict[str, GradientEdge]:
    return {name: get_gradient_edge(value) for name, value in made.items() if _wants(value)}


def _cut_off(value: Any) -> Packet:
    """Without its graph."""
    if not isinstance(value, Tensor):
        return _plain(value)
    return value.detach().requires_grad_(value.requires_grad)


def _marked(value: Any, trained: bool) -> Packet:
    if not isinstance(value, Tensor):
        return _plain(value)
    can = value.is_floating_point() or value.is_complex()
    return value.detach().requires_grad_(trained and can)


def _plain(value: Any) -> Packet:
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ConfigError(
        f"a {type(value).__name__} would go from one segment to the next; tensors, numbers and None can: cut elsewhere"
    )
