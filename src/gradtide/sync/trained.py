"""What is trained: a model's parameters that ask for a gradient, and the optimizers that step them."""

import inspect
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradtide.errors import ConfigError

__all__ = ["Trained", "as_optimizers", "find_trained", "has_stepped", "needs_closure"]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The parameters that ask for a gradient, by name, as they were when this was made; `is_outdated` says when one
    was frozen, unfrozen, converted, replaced or given to an optimizer since, or a group of theirs moved."""

    module: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    names: Sequence[str]
    parameters: Sequence[nn.Parameter]
    clip_norm: float | None = None
    broadcast_buffers: bool = True
    everything: Sequence[tuple[str, nn.Parameter]] = ()  # the frozen ones too
    closures: bool = False  # whether an optimizer may compute the loss anew within its step, as LBFGS does
    left: Sequence[tuple[str, nn.Parameter]] = ()  # were the model's once, and optimizers may still have them
    _modules: Sequence[nn.Module] = field(default=(), repr=False)
    _signature: list[Any] = field(default_factory=list, repr=False)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The one that steps everything, where `is_plain`."""
        return self.optimizers[0]

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def group_of(self) -> list[int]:
        """The optimizers' group of each parameter; -1 for one that none of them has."""
        found = {id(p): i for i, group in enumerate(self.groups) for p in group["params"]}
        return [found.get(id(parameter), -1) for parameter in self.parameters]

    def state_of(self, parameter: nn.Parameter) -> dict[Any, Any]:
        """The state of the optimizer that has this parameter, or of the first."""
        return self.owner(parameter).state

    def owner(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        for optimizer in self.optimizers[1:]:
            if any(p is parameter for group in optimizer.param_groups for p in group["params"]):
                return optimizer
        return self.optimizers[0]

    @property
    def buffers(self) -> list[tuple[str, Tensor]]:
        """As they are now: a module may have assigned new ones."""
        return list(self.module.named_buffers()) if self.broadcast_buffers else []

    @property
    def why_workers_step(self) -> str:
        """Why each worker must take the step itself, with the whole gradient; nothing if that is not needed."""
        if self.clip_norm is not None:
            return "norm clipping needs the whole gradient"
        if len(self.optimizers) > 1:
            return "several optimizers step it"
        if -1 in self.group_of():
            name = self.names[self.group_of().index(-1)]
            return f"{name} is in no optimizer, so its gradient is for you"
        if any(_hooks_of(optimizer) for optimizer in self.optimizers):
            return "the optimizer has step hooks"
        if any(map(_has_own_step, self.optimizers)):
            return "the program has put a function of its own in place of optimizer.step"
        sparse = [name for name, module in self.module.named_modules() if getattr(module, "sparse", False) is True]
        if sparse:
            return f"{sparse[0]} gives sparse gradients"
        return ""

    def is_outdated(self) -> bool:
        """Not while nothing asks for a gradient: a GAN freezes its critic for the generator's steps."""
        changed = self._signature != _sign(self.everything, self._modules, self.optimizers)
        return changed and any(p.requires_grad for p in self.module.parameters())

    def left_with_gradients(self) -> list[tuple[str, nn.Parameter]]:
        """Those that the model has no more, that an optimizer has still, and would step."""
        if not self.left:
            return []
        stepped = {id(p) for group in self.groups for p in group["params"]}
        return [(name, p) for name, p in self.left if p.grad is not None and id(p) in stepped]

    def is_rearranged(self) -> bool:
        """Whether a parameter, a group, a step hook or a step of the program's own came, went or moved since. (What was
        frozen since its backward is stepped all the same.)"""
        return self._signature[1:] != _sign(self.everything, self._modules, self.optimizers)[1:]

    def converted(self) -> list[str]:
        """Those that have another dtype or shape than they had."""
        now = _sign(self.everything, (), ())[0]
        pairs = zip(self.everything, self._signature[0], now, strict=True)
        return [name for (name, _), then, asked in pairs if then[2:] != asked[2:]]

    def has(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(known is optimizer for known in self.optimizers)

    def is_stepped_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it has a parameter of the model."""
        ours = {id(p) for _, p in self.everything}
        return any(id(p) in ours for group in optimizer.param_groups for p in group["params"])

    def beside(self, optimizer: torch.optim.Optimizer, *, last: bool) -> list[torch.optim.Optimizer]:
        """All optimizers from when this one steps, too, before the others or after them: instead of those that have
        some of its parameters, or none of the model's any more."""
        taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
        rest = [one for one in self.optimizers if self.is_stepped_by(one)]
        others = [o for o in rest if not any(id(p) in taken for g in o.param_groups for p in g["params"])]
        return [*others, optimizer] if last else [optimizer, *others]


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it computes the loss anew within its step, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has state of steps that it took. (Adagrad has some from the beginning.)"""
    states = [{name: value for name, value in state.items() if value is not None} for state in optimizer.state.values()]
    return any(state and float(state.get("step", 1)) > 0 for state in states)


def _hooks_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Hooks that somebody other than us has put around an optimizer's step."""
    around = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    return [hook for hook in around if not getattr(hook, "of_gradtide", False)]


def _has_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a program put something in place of the step that the optimizer's class has. (Torch's schedulers do so,
    too, around it.)"""
    step: Any = vars(optimizer).get("step", type(optimizer).step)
    while step is not None:
        function = getattr(step, "__func__", step)
        module = getattr(function, "__globals__", {}).get("__name__", "")
        if not module.startswith("torch.") and module not in {kind.__module__ for kind in type(optimizer).__mro__}:
            return True
        step = getattr(function, "__wrapped__", None)
    return False


# The second says what is under a Python object: `torch.utils.swap_tensors` leaves the object and takes its hooks away.
_asked = operator.attrgetter("requires_grad", "_cdata", "dtype", "shape")


def _sign(
    everything: Sequence[tuple[str, nn.Parameter]],
    modules: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> list[Any]:
    """What differs when something else is to be trained. Every forward asks, so it takes some microseconds a layer; who
    keeps it keeps the modules and parameters, too, so that no other gets one of their ids."""
    asked = [_asked(p) for _, p in everything]
    parts: list[Any] = []
    for module in modules:
        parts += module._parameters.values()
        parts += module._modules.values()
    groups = [list(map(id, group["params"])) for o in optimizers for group in o.param_groups]
    return [asked, list(map(id, parts)), groups, [(len(_hooks_of(one)), _has_own_step(one)) for one in optimizers]]


def as_optimizers(given: Any) -> tuple[torch.optim.Optimizer, ...]:
    """One optimizer, or several."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in several:
        if not isinstance(one, torch.optim.Optimizer):
            raise ConfigError(f"an optimizer of torch.optim is needed, or a list of them, not {type(one).__name__}")
    if not several:
        raise ConfigError("an optimizer is needed; an empty list has none")
    return several


def find_trained(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    clip_norm: float | None = None,
    *,
    broadcast_buffers: bool = True,
    closures: bool = False,
    on_meta: bool = False,
    before: Trained | None = None,
) -> Trained:
    """Raises ConfigError where model and optimizers don't belong together, before anything is changed. `on_meta`: who
    asks will give parameters without values some. `before`: what was trained until now. Optimizers may still have what
    the model had then, and need not have what it has now."""
    optimizers = as_optimizers(optimizer)
    for one in optimizers:
        if needs_closure(one) and closures and clip_norm is not None:
            raise ConfigError(f"clip_norm is of one gradient a step, and {type(one).__name__} takes many; leave it out")
        if needs_closure(one) and not closures:
            raise ConfigError(
                f"{type(one).__name__} steps with a closure, which model.step() does not take; use another optimizer"
            )
    if clip_norm is not None and (isinstance(clip_norm, str | bool) or not clip_norm > 0):
        raise ConfigError(f"clip_norm is {clip_norm!r}; it must be a number above 0")
    everything = list(module.named_parameters())
    here = {id(p) for _, p in everything}
    known = [] if before is None else [*before.everything, *before.left]
    left = [(name, p) for name, p in known if id(p) not in here]
    _check_parameters(module, everything, optimizers, left, on_meta=on_meta, follows=before is not None)
    named = [(name, p) for name, p in everything if p.requires_grad]
    names, parameters = zip(*named, strict=True)
    modules = list(module.modules())
    return Trained(
        module,
        optimizers,
        names,
        parameters,
        clip_norm,
        broadcast_buffers,
        everything,
        closures,
        left,
        modules,
        _sign(everything, modules, optimizers),
    )


def _check_parameters(
    module: nn.Module,
    everything: Sequence[tuple[str, nn.Parameter]],
    optimizers: Sequence[torch.optim.Optimizer],
    left: Sequence[tuple[str, nn.Parameter]],
    *,
    on_meta: bool,
    follows: bool,
) -> None:
    for name, parameter in everything:
        if is_lazy(parameter):
            raise ConfigError(f"{name} has no shape yet; run one forward of the model before wrapping it")
        if parameter.is_meta and not on_meta:
            raise ConfigError(f"{name} is on the meta device, without values; give it some (to_empty, load) first")
    stepped = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    twice = len(stepped) - len(set(stepped))
    if twice:
        raise ConfigError(f"{twice} parameters are in two optimizers; each may be in one only")
    owned = set(stepped)
    if not any(p.requires_grad and (follows or id(p) in owned) for _, p in everything):
        raise ConfigError(
            f"the optimizer has no parameter of {type(module).__name__} that asks for a gradient; make it with "
            "model.parameters() before wrapping"
        )
    foreign = owned - {id(p) for _, p in [*everything, *left]}
    if foreign:
        raise ConfigError(
            f"{len(foreign)} of the optimizer's parameters are not the model's; give each model its own optimizer"
        )
