"""The optimizer that fit was given, by name, as a function or as an object; one like it for every device."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError
from gradtide.train.steering.rates import check_rate

__all__ = ["OptimizerFactory", "Optimizers"]

OptimizerFactory = Callable[..., torch.optim.Optimizer]  # of the parameters
_EACH = ("params", "lr", "initial_lr")  # what a group has by itself, or is set elsewhere


class Optimizers:
    """Makes an optimizer for each copy of the model, and sets the rates of all: the user's own, times a factor."""

    def __init__(self, wanted: "str | OptimizerFactory | torch.optim.Optimizer", model: nn.Module, lr: float | None):
        if lr is not None:
            check_rate(lr)
        self._model = model
        self._given = wanted if isinstance(wanted, torch.optim.Optimizer) else None
        self._factory = None if isinstance(wanted, torch.optim.Optimizer) else _factory(wanted, lr)
        self._asked = None if self._factory is not wanted and self._given is None else lr  # a rate that went nowhere
        self._rates: list[float] | None = None  # of each group, before the factor
        self._first: list[float] | None = None  # of each group, before any schedule
        self._set: list[float] | None = None  # what the groups were told last
        self._options: list[dict[str, Any]] | None = None  # of each group, as all copies had them last
        if self._given is not None:
            _check_given(self._given, model)
            self._check(self._given)

    def make(self, module: nn.Module) -> torch.optim.Optimizer:
        """One for this copy of the model. All copies get the same."""
        if self._given is not None:
            made = _copy_to(self._given, _pairs(self._model, module))
        else:
            assert self._factory is not None
            made = self._factory([p for p in module.parameters() if p.requires_grad])
            if not isinstance(made, torch.optim.Optimizer):
                raise ConfigError(
                    f"the optimizer's function gave a {type(made).__name__}; it must give a torch.optim.Optimizer"
                )
            self._check(made)
        self._rates = [float(group["lr"]) for group in made.param_groups]
        return made

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        name = type(optimizer).__name__
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ConfigError(
                f"{name} computes the loss anew within a step (closure), which fit does not offer; take another "
                "optimizer, or write the loop yourself, in one process"
            )
        if not all("lr" in group for group in optimizer.param_groups):
            raise ConfigError(f"a group of {name} has no 'lr', which fit sets; give it one, 1.0 if there is no other")
        own = sorted({float(group["lr"]) for group in optimizer.param_groups})
        if self._asked is not None and own != [self._asked]:
            rates = ", ".join(f"{rate:g}" for rate in own)
            raise ConfigError(
                f"lr={self._asked:g}, but the optimizer that was given has its own rate ({rates}); leave lr out, or "
                'give the optimizer by name, as "Adam"'
            )

    def set_rates(self, optimizers: Sequence[torch.optim.Optimizer], factor: float) -> float:
        """Before a step; returns the first group's rate. What a scheduler has set meanwhile is the rate from now on."""
        assert self._rates is not None
        if self._given is not None:
            self._follow_given(optimizers)
        elif self._set is not None:
            for index, group in _groups(optimizers):
                if float(group["lr"]) != self._set[index]:
                    self._rates[index] = float(group["lr"])
        if self._given is None and len(optimizers) > 1:
            self._follow_options(optimizers)
        for index, group in _groups(optimizers):
            rate = self._rates[index] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._set = [float(group["lr"]) for group in optimizers[0].param_groups]
        return self._set[0]

    def _follow_given(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """The user's own object is never changed while fit runs, but by the user: a scheduler, say."""
        assert self._given is not None
        own = self._given.param_groups
        self._rates = [float(group["lr"]) for group in own]
        for index, group in _groups(optimizers):
            group.update({name: value for name, value in own[index].items() if name not in ("params", "lr")})

    def _follow_options(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """What the program has set in one of them (momentum, weight decay) is everybody's."""
        known = self._options or [dict[str, Any]() for _ in optimizers[0].param_groups]
        for index, group in _groups(optimizers if self._options else optimizers[:1]):
            now = _plain_options(group)
            if now != known[index]:
                known[index] = now
                for other in optimizers:
                    other.param_groups[index].update(now)
        self._options = known

    def begin_schedule(self, optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """The optimizer that a scheduler is to change: with the rates that the user gave, as before any step."""
        if self._given is not None:
            return self._given
        if self._first is None:
            assert self._rates is not None
            self._first = list(self._rates)
        for group, rate in zip(optimizers[0].param_groups, self._first, strict=True):
            group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], Tensor) else rate
            group.pop("initial_lr", None)
        return optimizers[0]

    def follow_schedule(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """The scheduler has moved: what it set (rates, momentum) is everybody's."""
        if self._given is not None:
            return
        first = optimizers[0].param_groups
        self._rates, self._set = [float(group["lr"]) for group in first], None
        for index, group in _groups(optimizers[1:]):
            group.update({name: value for name, value in first[index].items() if name not in ("params", "lr")})

    def forget(self) -> None:
        """The optimizers were loaded from a checkpoint: what their rates are now, nobody has set."""
        self._set = None

    def give_back(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        """At the end: the user's own object gets the state of the first copy's."""
        if self._given is None:
            return
        learnt = _copy_to(optimizer, _pairs(module, self._model))
        self._given.state.clear()
        self._given.state.update(learnt.state)
        for name in _extras(learnt):
            self._given.__dict__[name] = learnt.__dict__[name]


def _factory(wanted: str | OptimizerFactory, lr: float | None) -> OptimizerFactory:
    """A function of the parameters alone. `lr` goes to a class by name, and to a function that takes one."""
    if not isinstance(wanted, str):
        if lr is None or not _takes_rate(wanted):
            return wanted
        return partial(wanted, lr=lr)
    classes: dict[str, Any] = {
        name.lower(): thing
        for name, thing in vars(torch.optim).items()
        if isinstance(thing, type) and issubclass(thing, torch.optim.Optimizer) and thing is not torch.optim.Optimizer
    }
    if wanted.lower() not in classes:
        raise ConfigError(f"unknown optimizer {wanted!r}; choose one of {', '.join(sorted(classes))}")
    made: OptimizerFactory = classes[wanted.lower()]
    return made if lr is None else partial(made, lr=lr)


def _takes_rate(factory: OptimizerFactory) -> bool:
    """Whether it has an argument `lr` that nobody has set yet."""
    if isinstance(factory, partial) and "lr" in factory.keywords:
        return False
    try:
        return "lr" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # something built in
        return False


def _check_given(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raises ConfigError unless copies of it can do what it would have done itself."""
    name, own = type(optimizer).__name__, {id(p) for p in model.parameters()}
    foreign = sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise ConfigError(
            f"{foreign} of {name}'s parameters are not the model's; make it with model.parameters() of the model that "
            "fit is given"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ConfigError(
            f"{name} has step hooks, but fit steps copies of it, one a device; give fit a function from parameters to "
            "an optimizer that registers them"
        )


def _pairs(source: nn.Module, target: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    return list(zip(source.parameters(), target.parameters(), strict=True))


def _copy_to(
    optimizer: torch.optim.Optimizer, pairs: Sequence[tuple[nn.Parameter, nn.Parameter]]
) -> torch.optim.Optimizer:
    """The same options and the same state for other parameters, on their devices."""
    memo: dict[int, Any] = {id(source): target for source, target in pairs}
    made = copy.deepcopy(optimizer, memo)
    for name in _extras(optimizer):  # a class of the user's own may keep more than state
        made.__dict__[name] = copy.deepcopy(optimizer.__dict__[name], memo)
    homes: dict[Any, torch.device] = {target: source.device for source, target in pairs}
    for parameter, state in made.state.items():
        for name, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, Tensor) and value.device == homes.get(parameter):  # `step` stays on the CPU
                state[name] = value.to(parameter.device)
    return made


def _plain_options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in _EACH and not isinstance(value, Tensor)}


def _extras(optimizer: torch.optim.Optimizer) -> list[str]:
    """What the object has besides what every optimizer of torch has. (A scheduler puts a `step` of its own there.)"""
    every = {*torch.optim.SGD([torch.zeros(1)]).__dict__, "step", "_step_count", "_opt_called"}
    return [name for name in optimizer.__dict__ if name not in every]


def _groups(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[int, dict[str, Any]]]:
    for optimizer in optimizers:
        yield from enumerate(optimizer.param_groups)
