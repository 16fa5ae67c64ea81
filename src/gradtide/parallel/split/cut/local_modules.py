"""Local modules: copies of the model's, with a shard's own tensors in them, and dropout that knows its place."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.dropout import CHANNELWISE, DROPOUTS, DropoutPlace, SeededDropout
from gradtide.parallel.split.cut.shared_norm import SHAREABLE, CopiesBatchNorm
from gradtide.parallel.split.layers.registry import LayerPart

__all__ = ["LocalRules", "copied", "filled", "prepared"]


@dataclass(slots=True, eq=False)
class LocalRules:
    """What the modules of a device have in common."""

    place: DropoutPlace = field(default_factory=DropoutPlace)
    share_batch_norm: bool = False
    shared: list[CopiesBatchNorm] = field(default_factory=list)


def copied(unit: str, module: nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> nn.Module:
    """A copy of a whole module that has these tensors. (A memo of its own: a layer that two units call is two.)"""
    memo: dict[int, object] = {}
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        memo[id(getattr(module.get_submodule(owner), last))] = tensor
    try:
        return copy.deepcopy(module, memo)
    except (RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{unit} ({type(module).__name__}) can't be copied: {why}") from error


def filled(unit: str, module: nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> nn.Module:
    """A local module with these tensors; what is None it must not have."""
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        holder = module.get_submodule(owner)
        there = getattr(holder, last, None)
        if tensor is not None and (there is None or there.shape != tensor.shape):
            found = "missing" if there is None else f"of shape {tuple(there.shape)}"
            raise ConfigError(
                f"the local module of {unit} should hold {name} of shape {tuple(tensor.shape)}: it is {found}"
            )
        setattr(holder, last, tensor)
    return module


def prepared(unit: str, module: nn.Module, rules: LocalRules, part: LayerPart) -> nn.Module:
    """The module with seeded dropout and perhaps shared batch norm, and with nothing changed in place: what a segment
    reads is somebody else's too."""
    found = _replaced(unit, module, rules, part)
    if found is not None:
        return found
    for path, inner in list(module.named_modules()):
        if getattr(inner, "inplace", False) is True:
            inner.inplace = False
        for name, child in list(inner.named_children()):
            other = _replaced(".".join(filter(None, (unit, path, name))), child, rules, LayerPart(0, 1))
            if other is not None:
                setattr(inner, name, other)
    return module


def _replaced(layer: str, module: nn.Module, rules: LocalRules, part: LayerPart) -> nn.Module | None:
    if type(module) in DROPOUTS:
        return _seeded(layer, module, rules.place, part)
    if rules.share_batch_norm and isinstance(module, SHAREABLE):
        shared = CopiesBatchNorm(module).train(module.training)
        rules.shared.append(shared)
        return shared
    return None


def _seeded(layer: str, module: nn.Module, place: DropoutPlace, part: LayerPart) -> SeededDropout:
    assert isinstance(module, nn.modules.dropout._DropoutNd)
    found = SeededDropout(layer, module.p, place, channelwise=isinstance(module, CHANNELWISE))
    if part.given is not None:
        found.dim, found.total, found.offset = part.given.dim, part.given.total, part.given.of(part.shard).start
    return found.train(module.training)
