"""What a push does to a value: assignment, reductions, and any elementwise optimizer of torch.optim.

    assign                      the value is what was pushed (in rounds: by the highest worker)
    add max min product         pushes are combined into the value, in async and in rounds alike
      logsumexp any all
    mean, trimmed_mean          the value is the round's mean; in async there is nothing to divide by, so it is refused
    largest                     the value is the largest of the round's, which may be less than it was
    sgd, adam, adamw, …         one optimizer step with the mean (or `reduce="sum"`) of a round's gradients
    delayed_nesterov            the same, by an optimizer of our own, for changes that workers push one at a time

An optimizer is built on the server, by name and arguments, over each block by itself. That is the same as over the
whole tensor exactly when every element's update depends on that element alone; so those where it doesn't are refused.
"""

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from math import isfinite
from typing import Any, Literal

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.store.rules.arithmetic import Arguments, BlockState, Contribution
from gradtide.store.rules.codecs import check_compress, is_ready
from gradtide.store.rules.delayed_nesterov import DelayedNesterov
from gradtide.store.rules.fused import may_fuse
from gradtide.store.rules.published import publishes, split_beside
from gradtide.store.rules.reductions import SEMIRINGS, Semiring, reduce_in_order, same, trimmed_mean, weighted_mean
from gradtide.store.rules.tensors import dtype_name
from gradtide.store.wire.messages import Argument, KeySpec, Slot, UpdateRule

__all__ = [
    "ELEMENTWISE",
    "SCALE_RESIDUAL",
    "WHOLE_ROUNDS",
    "TorchArithmetic",
    "is_elementwise",
    "is_optimizer",
    "is_plain_sum",
    "make_optimizer",
    "plain_argument",
    "update",
]

# Checked one by one: each element's step depends on that element's own gradient and state, and on the step count.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
_NOT_ELEMENTWISE = {
    "LBFGS": "it looks at all elements together",
    "Muon": "it orthogonalises whole matrices",
    "Adafactor": "it keeps sums of rows and columns",
    "SparseAdam": "it needs sparse gradients",
}
_OWN = {"delayed_nesterov": DelayedNesterov}  # elementwise too
_OPTIMIZERS = {**{name.lower(): name for name in (*ELEMENTWISE, *_NOT_ELEMENTWISE)}, **{name: name for name in _OWN}}
_NEED_ROUNDS = ("mean", "trimmed_mean", "largest")
_RULES = ("assign", *_NEED_ROUNDS, *SEMIRINGS)
# Of `configure`, where averages go back compressed: what was left out is multiplied by this, now; and whether, from now
# on, averages go as they are, and what was left out stays.
SCALE_RESIDUAL, WHOLE_ROUNDS = "scale_residual", "whole_rounds"
# Choices of how torch computes; the server makes them.
_INTERNAL = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch's own that may step any part of a tensor by itself. A subclass may do anything."""
    kind = type(optimizer)
    return kind.__name__ in ELEMENTWISE and kind.__module__.startswith("torch.optim")


def is_optimizer(rule: UpdateRule) -> bool:
    """Whether it steps by an optimizer of torch, one that servers can run."""
    return rule.name in _OPTIMIZERS and _OPTIMIZERS[rule.name] not in _NOT_ELEMENTWISE


def plain_argument(name: str, value: Any) -> Argument:
    """As it goes over the wire: torch and numpy have numbers of their own."""
    if isinstance(value, list | tuple):
        return tuple(_plain_number(name, one) for one in value)
    return value if isinstance(value, str | None) else _plain_number(name, value)


def _plain_number(name: str, value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, bool | int | float):
        raise ConfigError(
            f"{name} holds a {type(value).__name__}, which servers can't be told; they take numbers, strings and "
            "tuples of numbers"
        )
    return value


def update(name: str, *, reduce: Literal["mean", "sum"] = "mean", **arguments: Any) -> UpdateRule:
    """Says how servers update a value from pushes: an update rule for `store.init`, or the outer optimizer of `Local`.

    `name` is "assign", "add", "trimmed_mean" or the like, an optimizer of torch's ("sgd", "adam"), or a reduction of
    your own that servers were started with ("package.module:name"). `reduce` says whether the contributions of a round
    are averaged by weight ("mean") or added ("sum"). The other `arguments` are the rule's own: `lr=0.1`. Raises
    ConfigError for a rule or an argument that there is not, before anything is sent.
    """
    if reduce not in ("mean", "sum"):
        raise ConfigError(f"reduce is {reduce!r}; say 'mean' or 'sum'")
    plain = {argument: plain_argument(argument, value) for argument, value in arguments.items()}
    rule = UpdateRule(name if ":" in name else name.lower(), plain, reduce)
    if ":" not in name:  # an import path: only the server knows whether it has been registered there
        _check(rule)
    return rule


def _check(rule: UpdateRule) -> None:
    """Is there such a rule, with such arguments?"""
    if rule.name in _OPTIMIZERS:
        make_optimizer(rule, [torch.zeros(1, requires_grad=True)])
        return
    if rule.name not in _RULES:
        near = get_close_matches(rule.name, (*_RULES, *_OPTIMIZERS), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join((*_RULES, *sorted(_OPTIMIZERS)))}"
        raise ConfigError(f"the update rule {rule.name!r} is unknown; {hint}")
    known = {"trim"} if rule.name == "trimmed_mean" else set()
    if set(rule.arguments) - known:
        raise ConfigError(f"{rule.name} has no argument {sorted(set(rule.arguments) - known)[0]!r}")
    if rule.name == "trimmed_mean":
        _trim(rule)


def _trim(rule: UpdateRule) -> float:
    trim = rule.arguments.get("trim", 0.1)
    if not isinstance(trim, int | float) or not 0 <= trim < 0.5:
        raise ConfigError(f"trimmed_mean cuts the share trim={trim!r} at each end; it must be at least 0 and below 0.5")
    return float(trim)


def make_optimizer(rule: UpdateRule, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of torch itself, fused where it can be."""
    name = _OPTIMIZERS[rule.name]
    if name in _NOT_ELEMENTWISE:
        raise ConfigError(
            f"{name} can't run on servers, which hold blocks: {_NOT_ELEMENTWISE[name]}; "
            "push with 'mean' and step on the workers"
        )
    kind: Any = _OWN.get(name) or getattr(torch.optim, name)
    known = [argument for argument in inspect.signature(kind).parameters if argument not in _INTERNAL]
    for argument in rule.arguments:
        if argument not in known:
            near = get_close_matches(argument, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"{name} has no argument {argument!r}; {hint}")
    fused = {"fused": True} if _may_fuse(name, parameters[0], rule.arguments) else {}
    try:
        optimizer: torch.optim.Optimizer = kind(parameters, **rule.arguments, **fused)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} refuses its arguments: {str(error).splitlines()[0]}") from error
    return optimizer


def _may_fuse(name: str, parameter: Tensor, arguments: Mapping[str, Argument]) -> bool:
    return name not in _OWN and may_fuse(name, parameter, arguments)


class TorchArithmetic:
    """Makes blocks of tensors. `semirings`: those of the server's own configuration, by import path."""

    def __init__(self, semirings: Mapping[str, Semiring] | None = None) -> None:
        self._semirings = {**SEMIRINGS, **(semirings or {})}

    def create(self, spec: KeySpec, value: Tensor) -> "_Reduced | _Optimized":
        rule = spec.update
        check_compress(spec, optimizer=rule.name in _OPTIMIZERS)
        is_ready(spec.compress, spec.dtype)  # on a replica, too, which has until the first round closes
        if rule.name in _OPTIMIZERS:
            return _Optimized(spec, value)
        semiring = self._semirings.get(rule.name)
        if semiring is None:
            if ":" in rule.name:
                raise ConfigError(
                    f"{rule.name!r} is not known to this server; start it with --semiring {rule.name}, or with "
                    f"local_servers(semirings=[{rule.name!r}])"
                )
            _check(rule)
        if rule.name in _NEED_ROUNDS and spec.delay is None:
            raise ConfigError(f"{spec.key!r} is async, and {rule.name} needs rounds; use bsp, bounded:k or 'add'")
        floats_only = rule.name in ("mean", "trimmed_mean") or (semiring is not None and semiring.floats_only)
        if floats_only and not value.is_floating_point():
            raise ConfigError(f"{spec.key!r} is {spec.dtype}, and {rule.name} needs a float dtype")
        return _Reduced(spec, semiring, value)

    def digest(self, value: Tensor) -> bytes:
        raw = value.detach().contiguous().view(torch.uint8).numpy()
        return blake2b(memoryview(raw), digest_size=16).digest()  # type: ignore[arg-type]

    def has_nan(self, value: Tensor) -> bool:
        return value.is_floating_point() and bool(torch.isnan(value).any())

    def count(self, value: Tensor) -> int:
        return value.numel()

    def part(self, value: Tensor, start: int, count: int) -> Tensor:
        return value.reshape(-1)[start : start + count]

    def restore(
        self, spec: KeySpec, value: Tensor, arguments: Arguments, beside: Mapping[str, Tensor]
    ) -> BlockState[Tensor]:
        rule = UpdateRule(spec.update.name, arguments, spec.update.reduce)
        state = self.create(replace(spec, update=rule), value)
        of_rule, published = split_beside(beside)
        if isinstance(state, _Optimized):
            state.take(of_rule)
        if published and state.published is not None:
            state.published.take(published)
        return state

    def slot(self, value: Tensor) -> Slot:
        name = dtype_name(value.dtype)
        assert name is not None
        return Slot(name, value.numel(), value.dim() == 0)

    def copy(self, value: Tensor) -> Tensor:
        return value.clone()


class _Reduced:
    """A value that contributions replace or are combined into."""

    def __init__(self, spec: KeySpec, semiring: Semiring | None, value: Tensor) -> None:
        self._rule, self._compressed = spec.update, bool(spec.compress)
        rule = spec.update
        self._semiring = semiring
        self._value = value.clone()
        self._plain = semiring is not None and semiring.lift is same  # a contribution alone is itself
        self.is_plain_sum = self._plain and rule.name == "add"
        self.published = publishes(spec, self.value)

    def value(self) -> Tensor:
        return self._value

    def combine(self, contributions: Sequence[Contribution[Tensor]]) -> Tensor:
        if self._plain and len(contributions) == 1 and contributions[0].weight is None:
            return contributions[0].value
        weighted = [(contribution.weight, contribution.value) for contribution in contributions]
        if self._semiring is not None:
            reduced = reduce_in_order(self._semiring, weighted)
            return reduced if reduced.dtype == self._value.dtype else reduced.to(self._value.dtype)
        if self._rule.name == "assign":
            return weighted[-1][1]
        if self._rule.name == "largest":
            return reduce_in_order(SEMIRINGS["max"], [(None, value) for _, value in weighted])
        return weighted_mean(weighted) if self._rule.name == "mean" else trimmed_mean(weighted, _trim(self._rule))

    def apply(self, combined: Tensor) -> None:
        if self._semiring is None:
            self._value.copy_(combined)
        elif self._rule.name == "add":
            self._value.add_(combined)
        else:
            semiring = self._semiring
            self._value.copy_(semiring.finish(semiring.combine(semiring.lift(self._value), combined)))
        if self.published is not None:
            self.published.fresh = True

    def check(self, changes: Mapping[str, Argument]) -> None:
        changes, factor, whole = self._split(changes)
        if factor is not None and not (isinstance(factor, int | float) and isfinite(factor)):
            raise ConfigError(f"what was left out can't be scaled by {factor!r}; give a finite number")
        if whole is not None and not isinstance(whole, bool):
            raise ConfigError(f"{WHOLE_ROUNDS} is {whole!r}; say True or False")
        _check(UpdateRule(self._rule.name, {**self._rule.arguments, **changes}, self._rule.reduce))

    def configure(self, changes: Mapping[str, Argument]) -> None:
        changes, factor, whole = self._split(changes)
        self._rule = UpdateRule(self._rule.name, {**self._rule.arguments, **changes}, self._rule.reduce)
        if self.published is not None and isinstance(factor, int | float):
            self.published.scale_residual(float(factor))
        if self.published is not None and whole is not None:
            self.published.goes_whole = bool(whole)

    def _split(self, changes: Mapping[str, Argument]) -> tuple[dict[str, Argument], Argument, Argument]:
        """Where averages go back compressed, some changes are about that, and are no arguments of the rule. Of a block
        that is too small to be encoded, nothing is ever left out."""
        changes = dict(changes)
        if not self._compressed or (self.published is not None and not self.published.averages):
            return changes, None, None
        return changes, changes.pop(SCALE_RESIDUAL, None), changes.pop(WHOLE_ROUNDS, None)

    def arguments(self) -> Arguments:
        return self._rule.arguments

    def beside(self) -> dict[str, Tensor]:
        return {} if self.published is None else self.published.beside()


def is_plain_sum(state: BlockState[Tensor]) -> bool:
    """Whether a contribution without a weight is simply added to the value."""
    return isinstance(state, _Reduced) and state.is_plain_sum


class _Optimized:
    """A value that an optimizer steps."""

    def __init__(self, spec: KeySpec, value: Tensor) -> None:
        if not value.is_floating_point():
            raise ConfigError(f"{spec.key!r} is {spec.dtype}, and {spec.update.name} needs a float dtype")
        self._rule = spec.update
        self._parameter = torch.nn.Parameter(value.clone())
        self._optimizer = make_optimizer(spec.update, [self._parameter])
        self.published = publishes(spec, self.value)

    def value(self) -> Tensor:
        return self._parameter.detach()

    def combine(self, contributions: Sequence[Contribution[Tensor]]) -> Tensor:
        # A negative weight says: I had samples, but no gradient of this. It counts in the mean, and adds nothing.
        weighted = [(1.0 if c.weight is None else c.weight, c.value) for c in contributions]
        if not any(weight > 0 for weight, _ in weighted):
            return self._parameter.detach().new_empty(0)  # nobody had a gradient: there is no step to take
        return weighted_mean([(abs(w), value) for w, value in weighted], divide=self._rule.reduce == "mean")

    def apply(self, combined: Tensor) -> None:
        if combined.numel() == 0:
            return
        self._parameter.grad = combined
        self._optimizer.step()
        self._parameter.grad = None

    def check(self, changes: Mapping[str, Argument]) -> None:
        """By making one: torch knows best what it takes."""
        changed = UpdateRule(self._rule.name, {**self._rule.arguments, **changes}, self._rule.reduce)
        make_optimizer(changed, [torch.zeros(1, dtype=self._parameter.dtype, requires_grad=True)])

    def configure(self, changes: Mapping[str, Argument]) -> None:
        self._rule = UpdateRule(self._rule.name, {**self._rule.arguments, **changes}, self._rule.reduce)
        group = self._optimizer.param_groups[0]
        group.update(changes)
        if bool(group.get("fused")) != _may_fuse(_OPTIMIZERS[self._rule.name], self._parameter, self._rule.arguments):
            made = make_optimizer(self._rule, [self._parameter])  # as a server makes it that restores this block
            made.state = self._optimizer.state
            self._optimizer = made

    def arguments(self) -> Arguments:
        return self._rule.arguments

    def beside(self) -> dict[str, Tensor]:
        """Torch keeps all of an optimizer's state in tensors, or None where there is none yet."""
        state = self._optimizer.state.get(self._parameter, {})
        found = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        return found if self.published is None else {**found, **self.published.beside()}

    def take(self, beside: Mapping[str, Tensor]) -> None:
        """The state that another server's optimizer had."""
        if beside:
            self._optimizer.state[self._parameter] = {name: value.clone() for name, value in beside.items()}
