"""Layers that are taken as a whole: torch's own, and classes that were named."""

from torch import nn
from torch.nn.utils import parametrize

from gradtide.parallel.split.layers.registry import is_registered
from gradtide.parallel.split.layers.response_norm import GroupedResponseNorm

__all__ = ["is_layer", "keep_whole"]

_WHOLE: set[type[nn.Module]] = {GroupedResponseNorm}
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def keep_whole(kind: type[nn.Module]) -> None:
    """From now on a module of this class is one unit, whatever its forward does."""
    _WHOLE.add(kind)


def is_layer(module: nn.Module) -> bool:
    if type(module) in _WHOLE or is_registered(type(module)):
        return True
    if parametrize.is_parametrized(module):
        return is_layer_class(type(module).__mro__[1])  # torch makes a class of its own for each
    return is_layer_class(type(module))


def is_layer_class(kind: type) -> bool:
    of_torch = kind.__module__.startswith("torch.nn.") and kind not in _CONTAINERS
    return kind in _WHOLE or is_registered(kind) or of_torch
