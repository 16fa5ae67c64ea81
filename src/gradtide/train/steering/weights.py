"""A loss whose samples count by weights of their own: the mean of the samples' losses, each with its weight."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradtide.errors import ConfigError
from gradtide.parallel.devices.loss_terms import NAMES, LossFn

__all__ = ["WeightedLoss", "count_weights"]


def count_weights(targets: tuple[Tensor, Tensor]) -> Tensor:
    """Over how much the mean is: the sum of the weights."""
    return targets[1].sum()


class WeightedLoss:
    """Of outputs and (targets, weights). `wanted` is a loss of torch's that is a mean, or gives a number a sample."""

    def __init__(self, wanted: str | LossFn) -> None:
        self._each = _one_a_sample(wanted)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        labels, weights = targets
        losses = self._each(outputs, labels)
        if not isinstance(losses, Tensor) or losses.dim() == 0 or len(losses) != len(weights):
            raise ConfigError(
                "with sample weights the loss must give a number for each sample: take one of torch's by name, as "
                "'mse', or a function without the mean at its end"
            )
        each = losses.flatten(1).mean(1) if losses.dim() > 1 else losses
        counts = weights.to(each.device, torch.promote_types(each.dtype, torch.float32))
        mean: Tensor = (each * counts).sum() / counts.sum()
        return mean


def _one_a_sample(wanted: str | LossFn) -> Callable[[Any, Any], Any]:
    if isinstance(wanted, str):
        name = NAMES.get(wanted.lower(), wanted.lower())
        if name not in NAMES.values():
            raise ConfigError(f"unknown loss {wanted!r}; choose one of {', '.join(NAMES)}, or give a function")
        return _checked(partial(getattr(functional, name), reduction="none"))
    if isinstance(wanted, nn.Module) and hasattr(wanted, "reduction"):
        if wanted.reduction != "mean" or getattr(wanted, "weight", None) is not None:
            raise ConfigError(
                f"{type(wanted).__name__} with sample weights: the mean alone, without class weights, is known how to "
                "weigh; give the classes' weights with the samples'"
            )
        each: Any = copy.deepcopy(wanted)
        each.reduction = "none"
        return _checked(each)
    named = [name for name in NAMES.values() if getattr(functional, name) is wanted]
    return _checked(partial(getattr(functional, named[0]), reduction="none")) if named else wanted


def _checked(each: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A target that is ignored would count with its weight in the mean."""
    ignored = getattr(each, "ignore_index", -100)

    def checked(outputs: Any, labels: Any) -> Any:
        if isinstance(labels, Tensor) and not labels.is_floating_point() and bool((labels == ignored).any()):
            raise ConfigError(
                f"a target is {ignored}, which is ignored, and has a sample weight; give such samples the weight 0 and "
                "a class that there is"
            )
        return each(outputs, labels)

    return checked
