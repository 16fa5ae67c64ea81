"""A loss of a batch that is cut into parts: torch's own by name, and how the losses of the parts make up the batch's.

A mean over a part counts as many terms as it is a mean over: samples; or targets that are not ignored, each with its
class's weight. A sum counts as it is. For torch's own losses that is known. Any other is taken to be a mean over
samples, unless `loss_terms` says what it is, and that is compared while it runs (loss_check.py).
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError, DataError
from gradtide.parallel.devices.batches import DeviceBatch
from gradtide.parallel.devices.loss_check import Halves, refuse_foreign, refuse_random
from gradtide.parallel.devices.loss_terms import NAMES, LossFn, Terms, find_terms
from gradtide.parallel.devices.nested import length

__all__ = ["Loss", "LossFn", "LossTerms", "Weighed"]

LossTerms = Callable[[Tensor], float | Tensor] | Literal["sum"] | None  # what `loss_terms=` takes


@dataclass(frozen=True, slots=True)
class Weighed:
    """What the losses of a batch's parts count."""

    weights: Sequence[float]  # one a part; the batch's loss is the sum of weight times loss
    terms: float  # that the batch's loss is a mean over; of a sum, the samples


class Loss:
    """A function from outputs and targets to one number, with what is known of that number."""

    def __init__(
        self, wanted: str | LossFn, loss_terms: LossTerms = None, devices: Sequence[torch.device] = ()
    ) -> None:
        self._fn = _find(wanted)
        self.terms: Terms = find_terms(self._fn, loss_terms)
        self._fns = {device: _on(self._fn, device) for device in devices}
        self._halves = Halves(self.terms)
        self.looks = 0  # in how many calls from now on it is looked at what it reads
        self.repeats = 0  # and in how many it is computed twice, to see that it is the same
        self.weighted = False  # whether targets are pairs of targets and of what each sample counts
        self.precision: torch.dtype | None = None  # that forward and the loss are computed in, where torch allows

    @classmethod
    def of(cls, given: LossFn) -> "Loss":
        return given if isinstance(given, cls) else cls(given)

    @property
    def function(self) -> LossFn:
        """What computes it."""
        return self._fn

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """What forward and the loss are computed in, on this device."""
        return nullcontext() if self.precision is None else torch.autocast(device.type, self.precision)

    def plain_targets(self, targets: Any) -> Any:
        """What a metric, or who counts right answers, is to see of them."""
        return targets[0] if self.weighted else targets

    def begin(self, parts: Sequence[DeviceBatch], *, split: bool) -> Weighed:
        """Before the losses of a step are asked for. `split`: these parts, or those of all workers, are several."""
        self._halves.begin([part.targets for part in parts if part.weight], split=split)
        return self.weigh(parts)

    def weigh(self, parts: Sequence[DeviceBatch]) -> Weighed:
        """A part of weight 0 counts nothing, whatever is in it."""
        samples = sum(part.samples for part in parts if part.weight)
        if self.terms.is_sum:
            # A worker's gradient counts by its share of the batch's samples, so its sum is taken as much larger.
            return Weighed([(part.of or samples) / samples if part.weight else 0.0 for part in parts], samples)
        if self.terms.count is None:
            return Weighed([part.weight for part in parts], samples)
        counts = [self.count(part.targets) if part.weight else 0.0 for part in parts]
        total = sum(counts)
        return Weighed([count / total if total else 0.0 for count in counts], total)

    def count(self, targets: Tensor) -> float:
        """Over how many terms the loss of these targets is a mean."""
        terms = float(length(targets)) if self.terms.count is None else float(self.terms.count(targets))
        if not (terms >= 0 and math.isfinite(terms)):
            raise ConfigError(f"loss_terms gave {terms}; it must give the number of terms of a batch, 0 or more")
        return terms

    def refuse_nothing(self, terms: float) -> None:
        """One process would get a loss that is not a number, and parameters that are none from then on."""
        if not terms:
            raise DataError(
                "no target of a batch counts (all are ignored, or of classes of weight 0), so its loss is a mean over "
                "nothing; leave such batches out, or make batches larger"
            )

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        fn = self._fns.get(_device_of(targets), self._fn)
        compare = self._halves.watch(outputs, targets)
        loss = fn(outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(
                f"the loss gave {found}; it must give one number, the mean or the sum of all, as a tensor"
            )
        if compare is not None:
            compare(fn, loss)
        if self.looks > 0:
            self.looks -= 1
            refuse_foreign(outputs, loss)
        if self.repeats > 0:
            self.repeats -= 1
            refuse_random(fn, outputs, targets, loss)
        return loss


def _device_of(targets: Any) -> Any:
    return next((leaf.device for leaf in pytree.tree_leaves(targets) if isinstance(leaf, Tensor)), None)


def _find(wanted: str | LossFn) -> LossFn:
    """By its name in torch.nn.functional, in short ("mse") or in full ("mse_loss"); a function stays what it is."""
    if isinstance(wanted, str):
        name = wanted.lower()
        if name not in NAMES and name not in NAMES.values():
            raise ConfigError(f"unknown loss {wanted!r}; choose one of {', '.join(NAMES)}, or give a function")
        found: LossFn = getattr(functional, NAMES.get(name, name))
        return found
    if isinstance(wanted, type) or not callable(wanted):
        raise ConfigError(
            f"the loss is {wanted!r}; give a name such as 'mse', or a function or module that makes one number of "
            "(outputs, targets)"
        )
    if isinstance(wanted, nn.Module) and any(p.requires_grad for p in wanted.parameters()):
        raise ConfigError(
            f"the loss {type(wanted).__name__} has parameters that ask for a gradient, but only the model's are "
            "trained; make it a part of the model, or freeze it with requires_grad_(False)"
        )
    return wanted


def _on(fn: LossFn, device: torch.device) -> LossFn:
    """With its class weights, or whatever tensors it has, on the device."""
    if isinstance(fn, nn.Module):
        tensors = [*fn.parameters(), *fn.buffers()]
        return fn if all(tensor.device == device for tensor in tensors) else copy.deepcopy(fn).to(device)
    if isinstance(fn, partial) and not fn.args:
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in fn.keywords.items()}
        return partial(fn.func, **moved)
    return fn
