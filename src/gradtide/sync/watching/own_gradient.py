"""Gradients of which no worker has the whole: who looks at one, or changes it, gets the whole one after all.

Between backward and step `p.grad` is an `OwnGradient` where parameters are shared. It lies in the gradient's own
memory, and costs no more than its making (2 microseconds) as long as nobody does anything with it.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError

__all__ = ["OwnGradient", "OwnGradients", "plain_gradient"]


class OwnGradient(Tensor):
    """A gradient that is this worker's alone."""

    plain: Tensor
    place: int  # of its parameter
    is_whole: bool
    covered_by: "weakref.ref[OwnGradients]"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _SAYS_NO_VALUE:
                return func(*args, **(kwargs or {}))
            arguments, named = pytree.tree_map(_seen, (tuple(args), kwargs or {}))
            return func(*arguments, **named)


_PROPERTIES = ("shape", "dtype", "device", "layout", "is_sparse", "requires_grad", "is_leaf", "grad_fn", "ndim")
_METHODS = ("size", "numel", "dim", "stride", "is_contiguous", "is_floating_point", "element_size")
_SAYS_NO_VALUE = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {getattr(Tensor, name) for name in _METHODS}


class OwnGradients:
    """Covers parameters' gradients, until they are whole or gone with a step."""

    def __init__(self, parameters: Sequence[nn.Parameter], get_whole: Callable[[int], None]) -> None:
        """`get_whole` makes every gradient the one of all workers; it is told whose was looked at."""
        self._parameters, self._get_whole = parameters, weakref.WeakMethod(get_whole)

    def cover(self) -> None:
        known = weakref.ref(self)
        for index, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if type(gradient) is Tensor and not gradient.requires_grad:
                covered = gradient.as_subclass(OwnGradient)
                covered.plain, covered.place, covered.is_whole, covered.covered_by = gradient, index, False, known
                parameter.grad = covered

    def uncover(self, *, whole: bool = False) -> None:
        """`whole`: they are about to be."""
        for parameter in self._parameters:
            gradient = parameter.grad
            if isinstance(gradient, OwnGradient):
                gradient.is_whole = whole
                parameter.grad = gradient.plain

    def look(self, gradient: OwnGradient) -> bool:
        """Makes it whole, if it still is its parameter's."""
        get_whole = self._get_whole()
        if get_whole is None or plain_gradient(self._parameters[gradient.place]) is not gradient.plain:
            return False
        get_whole(gradient.place)
        gradient.is_whole = True
        return True


def _seen(value: Any) -> Any:
    if not isinstance(value, OwnGradient):
        return value
    covered_by = value.covered_by()
    if not value.is_whole and (covered_by is None or not covered_by.look(value)):
        raise ConfigError(
            "a gradient that was kept from an earlier step is this worker's part alone, as parameters are shared; look "
            "at gradients before step(), or make the model with share_parameters=False"
        )
    return value.plain


def plain_gradient(parameter: nn.Parameter) -> Tensor | None:
    """Without its cover."""
    gradient = parameter.grad
    return gradient.plain if isinstance(gradient, OwnGradient) else gradient
