"""The user's optimizer, as one device steps its own parameters with it."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError, DataError
from gradtide.parallel.split.run.held import Held, Holding
from gradtide.store.rules.updates import is_elementwise
from gradtide.sync.trained import needs_closure

__all__ = ["LocalOptimizer", "check_optimizer", "check_optimizer_state", "steps_by_rounding"]

_BY_TENSOR = ("Adafactor", "Muon")  # of torch's: they look at a whole tensor, and at no other
_BY_SIGN = ("Adafactor", "Rprop")  # however small a gradient is, its step is not


def check_optimizer(optimizer: torch.optim.Optimizer, holdings: Iterable[Holding], stages: int) -> None:
    """Refuses one that would step otherwise than on one device."""
    kind = type(optimizer)
    if needs_closure(optimizer):
        raise ConfigError(f"{kind.__name__} steps with a closure, which model.step() does not take; use another one")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ConfigError(f"{kind.__name__} has step hooks, but each device steps one of its own; remove them")
    if is_elementwise(optimizer):
        return
    sliced = next((holding.name for holding in holdings if holding.local.index), None)
    if sliced is not None:
        raise ConfigError(
            f"{kind.__name__} is not one of torch's elementwise optimizers, but {sliced} is cut into shards; use "
            "SGD, Adam, AdamW or the like, or a layout without shards"
        )
    of_torch = kind.__module__.startswith("torch.optim") and kind.__name__ in _BY_TENSOR
    if stages > 1 and not of_torch:
        raise ConfigError(
            f"{kind.__name__} may look at parameters together, which are on different devices; use one of torch's, or "
            "a layout of one stage"
        )


def steps_by_rounding(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a gradient of nothing but rounding makes a step that can be seen: it is divided by its own size."""
    if type(optimizer).__name__ in _BY_SIGN:
        return True
    for group in optimizer.param_groups:
        least = group.get("eps")
        kinds = {parameter.dtype for parameter in group["params"] if parameter.is_floating_point()}
        if isinstance(least, float) and any(least < torch.finfo(dtype).eps for dtype in kinds):
            return True
    return False


def check_optimizer_state(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Mapping[str, Any]],
    states: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Refuses what another kind of optimizer, or one of another model, has kept."""
    kind = type(optimizer).__name__
    for own, theirs in zip(optimizer.param_groups, groups, strict=True):
        unknown, missing = sorted(set(theirs) - set(own) - {"initial_lr"}), sorted(set(own) - set(theirs))
        if unknown and missing:
            raise DataError(f"the state is of another optimizer: it has {unknown[0]}, and {kind} wants {missing[0]}")
    for name, state in states.items() if is_elementwise(optimizer) else ():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim() and tuple(value.shape) != shapes[name]:
                raise DataError(
                    f"the optimizer's state is of another model: {key} of {name} has shape {tuple(value.shape)} there, "
                    f"and the parameter {shapes[name]}"
                )


class LocalOptimizer:
    """One like the user's over what this device holds. The user's groups say with which options, at every step."""

    def __init__(self, user: torch.optim.Optimizer, names: Mapping[int, str], held: Held) -> None:
        """names: the model's name of each of the user's parameters, by its id."""
        self._user, self._held = user, held
        self._placeholder = nn.Parameter(torch.empty(0), requires_grad=False)
        self._inner = self._like_users(names)
        self._empty = not any(group["params"] for group in self._inner.param_groups)

    def _like_users(self, names: Mapping[int, str]) -> torch.optim.Optimizer:
        memo: dict[int, Any] = {}
        for parameter in _parameters(self._user):
            held = self._held.parameters.get(names[id(parameter)])
            memo[id(parameter)] = self._placeholder if held is None else held.tensor
        state, self._user.state = self._user.state, type(self._user.state)(dict)
        try:
            made = copy.deepcopy(self._user, memo)
        finally:
            self._user.state = state
        for group in made.param_groups:
            group["params"] = [one for one in group["params"] if one is not self._placeholder]
        return made

    def step(self) -> None:
        if self._empty:
            return
        for own, theirs in zip(self._inner.param_groups, self._user.param_groups, strict=True):
            own.update({name: value for name, value in theirs.items() if name != "params"})
        self._inner.step()

    def state_of(self, holding: Holding) -> dict[str, Any]:
        """As the optimizer keeps it: tensors of the parameter's shape are of this device's part."""
        return dict(self._inner.state.get(holding.tensor, {}))

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """By the model's names, of whole parameters: takes this device's part."""
        self._inner.state.clear()
        for holding in self._held.parameters.values():
            if holding.name in states:
                self._inner.state[holding.tensor] = {
                    key: _part_of(value, holding) for key, value in states[holding.name].items()
                }


def _part_of(value: Any, holding: Holding) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    local = holding.local
    if tuple(value.shape) == local.shape and value.dim():
        part = value[local.index] if local.index else value
        dtype = local.tensor.dtype if value.is_floating_point() else value.dtype
        return part.detach().to(local.tensor.device, dtype, copy=True)
    return value.detach().clone()


def _parameters(optimizer: torch.optim.Optimizer) -> Sequence[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
