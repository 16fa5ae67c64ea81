"""An optimizer's bytes of state and seconds of updating, from steps that it really takes."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.profile.scratch import peak_of, profiler_is_taken
from gradtide.parallel.split.profile.timing import clock

__all__ = ["UpdateCosts", "update_costs"]

Wanted = str | torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer]
_MOST = 16 << 20  # bytes: beyond what caches hold


@dataclass(frozen=True, slots=True)
class UpdateCosts:
    """State in bytes a byte of parameters; seconds a parameter and a byte."""

    state_per_byte: float
    per_parameter_s: float
    per_byte_s: float
    moment_per_byte: float  # bytes that a step needs for a moment, a byte of the largest parameter


def update_costs(wanted: Wanted, model_bytes: int, dtype: torch.dtype = torch.float32) -> UpdateCosts:
    """`wanted`: a name in torch.optim ("sgd", "adamw"; "momentum": SGD with it), an optimizer, or what makes one."""
    few = nn.Parameter(torch.zeros(64, dtype=dtype))
    count = max(1024, min(_MOST, model_bytes) // few.element_size())
    many = nn.Parameter(torch.zeros(count, dtype=dtype))
    small_s, state = _step(_made(wanted, few), few)
    optimizer = _made(wanted, many)
    large_s, _ = _step(optimizer, many)
    moment = 0 if profiler_is_taken() else peak_of(optimizer.step)
    per_byte = max(0.0, (large_s - small_s) / (many.nbytes - few.nbytes))
    return UpdateCosts(state / few.nbytes, small_s, per_byte, moment / many.nbytes)


def _step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[float, int]:
    """The median seconds of a step, and the bytes that the optimizer then keeps for the parameter."""
    parameter.grad = torch.full_like(parameter, 1e-3)
    taken = []
    for _ in range(6):
        start = clock()
        optimizer.step()
        taken.append(clock() - start)
    kept = [value for value in optimizer.state[parameter].values() if isinstance(value, torch.Tensor)]
    return median(taken[1:]), sum(value.nbytes for value in kept if value.dim())


def _made(wanted: Wanted, parameter: nn.Parameter) -> torch.optim.Optimizer:
    if isinstance(wanted, torch.optim.Optimizer):
        known = inspect.signature(type(wanted).__init__).parameters
        options = {name: value for name, value in wanted.param_groups[0].items() if name in known and name != "params"}
        made: torch.optim.Optimizer = type(wanted)([parameter], **options)
        return made
    if not isinstance(wanted, str):
        return wanted([parameter])
    if wanted.lower() == "momentum":
        return torch.optim.SGD([parameter], lr=0.01, momentum=0.9)
    kinds: dict[str, Any] = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    kind = kinds.get(wanted.lower())
    if kind is None or not issubclass(kind, torch.optim.Optimizer) or kind is torch.optim.Optimizer:
        raise ConfigError(
            f"unknown optimizer {wanted!r}; give one of torch.optim by name (sgd, adamw, ...), or momentum"
        )
    return kind([parameter], lr=1e-3)  # type: ignore[no-any-return]
