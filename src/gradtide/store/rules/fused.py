"""Where torch's fused kernels may be used: where a trial shows that they do what the plain ones do.

It is not a matter of course: torch 2.13's fused SGD leaves half-precision parameters on the CPU as they were. And in
half precision fused kernels round less often than plain ones, so results would depend on the size of a block.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["FUSED_ELEMENTS", "fused_holds", "may_fuse"]

# From so many elements on torch's fused kernel is used: it goes over memory once, but wakes all threads however small
# the tensor (measured on two busy cores: 64 elements of SGD took 12 ms, and 0.05 ms without).
FUSED_ELEMENTS = 1 << 17

_TRIAL_ELEMENTS, _TRIAL_STEPS = 1027, 4  # full vectors and a rest; state of an earlier step is used
_TRIAL_VALUES = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.5, "lr_decay": 0.1}
_ROUNDINGS = 64  # by which the results of two orders of arithmetic may differ; a wrong one is off by millions


def may_fuse(name: str, parameter: Tensor, arguments: Mapping[str, Any]) -> bool:
    """Whether the optimizer of this name may step the parameter with its fused kernel, and gains by it."""
    return parameter.numel() >= FUSED_ELEMENTS and fused_holds(name, parameter.dtype, _branches(arguments))


def _branches(arguments: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    """What decides which code runs: the switches, and whether numbers are nought."""
    return tuple(sorted((k, bool(v)) for k, v in arguments.items() if isinstance(v, bool | int | float)))


@functools.cache
def fused_holds(name: str, dtype: torch.dtype, branches: tuple[tuple[str, bool], ...]) -> bool:
    """Whether a few steps of the fused kernel come out as those of the plain one."""
    kind: Any = getattr(torch.optim, name)
    known = inspect.signature(kind).parameters
    if "fused" not in known or dtype.itemsize < 4:
        return False
    arguments: dict[str, Any] = {}
    for option, there in branches:
        default = known[option].default
        if isinstance(default, bool | None):
            arguments[option] = there
        else:
            arguments[option] = _TRIAL_VALUES.get(option, default or 0.1) if there else 0
    try:
        fused, plain = (_trial(kind, dtype, {**arguments, "fused": fused}) for fused in (True, False))
    except (RuntimeError, ValueError, TypeError):  # there is no such kernel
        return False
    tolerance = _ROUNDINGS * torch.finfo(dtype).eps
    return fused.keys() == plain.keys() and all(
        torch.allclose(fused[part], plain[part], rtol=tolerance, atol=tolerance) for part in plain
    )


def _trial(kind: Any, dtype: torch.dtype, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The value and its optimizer's state after a few steps."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(_TRIAL_STEPS + 1, _TRIAL_ELEMENTS, generator=generator, dtype=dtype)
    parameter = torch.nn.Parameter(numbers[0].clone())
    optimizer = kind([parameter], **arguments)
    for gradient in numbers[1:]:
        parameter.grad = gradient.clone()
        optimizer.step()
    state = {name: value for name, value in optimizer.state[parameter].items() if isinstance(value, Tensor)}
    return {**state, "": parameter.detach()}
