"""Delayed Nesterov: an outer optimizer for pushes that come one at a time (Liu et al. 2024, asynchronous local SGD).

Momentum that takes up every push by itself overshoots: pushes from one base say nearly the same. So each of N pushes
only takes its plain part of a step, g/N, and momentum takes up the mean of all N at the last of them. N pushes from one
base, in any order, are one step of Nesterov's with their mean.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["DelayedNesterov"]


class DelayedNesterov(torch.optim.Optimizer):
    """Elementwise. Each parameter counts its own pushes, so that any block of a tensor may be stepped by itself."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.7, momentum: float = 0.9, every: int = 1) -> None:
        if not lr >= 0.0:
            raise ValueError(f"lr={lr!r} makes no sense; it is 0 or more")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum={momentum!r} makes no sense; it is 0 or more, and below 1")
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every={every!r} makes no sense; it is a number of pushes, 1 or more")
        super().__init__(params, {"lr": lr, "momentum": momentum, "every": every})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group["lr"], group["momentum"], group["every"])
        return loss

    def _step_one(self, parameter: Tensor, lr: float, momentum: float, every: int) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)  # pushes since momentum took some up
            state["momentum_buffer"] = torch.zeros_like(parameter)
            state["waiting"] = torch.zeros_like(parameter)  # their sum
        state["step"] += 1
        state["waiting"].add_(gradient)
        parameter.add_(gradient, alpha=-lr / every)
        if int(state["step"]) >= every:  # more, where `every` was made smaller meanwhile
            state["momentum_buffer"].mul_(momentum).add_(state["waiting"], alpha=1 / every)
            parameter.add_(state["momentum_buffer"], alpha=-lr * momentum)
            state["waiting"].zero_()
            state["step"].zero_()
