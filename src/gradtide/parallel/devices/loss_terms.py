"""What torch's losses are a mean over, and what one says of a loss of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from gradtide.errors import ConfigError

__all__ = ["NAMES", "LossFn", "Terms", "find_terms"]

LossFn = Callable[[Any, Tensor], Tensor]  # (outputs, targets) -> the loss, one number

NAMES = {
    "bce": "binary_cross_entropy",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "cross_entropy": "cross_entropy",
    "hinge_embedding": "hinge_embedding_loss",
    "huber": "huber_loss",
    "kl_div": "kl_div",
    "l1": "l1_loss",
    "mse": "mse_loss",
    "multi_margin": "multi_margin_loss",
    "multilabel_margin": "multilabel_margin_loss",
    "multilabel_soft_margin": "multilabel_soft_margin_loss",
    "nll": "nll_loss",
    "poisson_nll": "poisson_nll_loss",
    "smooth_l1": "smooth_l1_loss",
    "soft_margin": "soft_margin_loss",
}
_MODULES: dict[str, type[nn.Module]] = {
    "binary_cross_entropy": nn.BCELoss,
    "binary_cross_entropy_with_logits": nn.BCEWithLogitsLoss,
    "cross_entropy": nn.CrossEntropyLoss,
    "hinge_embedding_loss": nn.HingeEmbeddingLoss,
    "huber_loss": nn.HuberLoss,
    "kl_div": nn.KLDivLoss,
    "l1_loss": nn.L1Loss,
    "mse_loss": nn.MSELoss,
    "multi_margin_loss": nn.MultiMarginLoss,
    "multilabel_margin_loss": nn.MultiLabelMarginLoss,
    "multilabel_soft_margin_loss": nn.MultiLabelSoftMarginLoss,
    "nll_loss": nn.NLLLoss,
    "poisson_nll_loss": nn.PoissonNLLLoss,
    "smooth_l1_loss": nn.SmoothL1Loss,
    "soft_margin_loss": nn.SoftMarginLoss,
}
_OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})  # means over targets, each with its class's weight
_OF_SAMPLES = frozenset({"multi_margin_loss", *_OF_CLASSES})  # outputs and targets have different shapes
_OPTIONS = ("reduction", "weight", "pos_weight", "ignore_index")
_IGNORED = -100  # torch's default


@dataclass(frozen=True, slots=True)
class Terms:
    """How the losses of parts of a batch make up the batch's."""

    is_sum: bool = False
    count: Callable[[Tensor], float | Tensor] | None = None  # the terms of targets; None: so many for each sample
    known: bool = False  # else it is compared
    said: bool = False  # by the user
    elementwise: bool = False  # outputs and targets are of one shape, or torch makes them so


def find_terms(fn: LossFn, said: Any = None) -> Terms:
    """What is known of a loss, or `said` of it: "sum", or a function from targets to their number of terms."""
    if said is not None:
        if said != "sum" and not callable(said):
            raise ConfigError(
                f"loss_terms is {said!r}; give a function from targets to the number of terms that the loss is a mean "
                'over, or "sum"'
            )
        return Terms(is_sum=True, said=True) if said == "sum" else Terms(count=said, said=True)
    name, options = _read(fn)
    reduction = options.get("reduction", "mean")
    if name and reduction == "none":
        raise ConfigError(f"{name} with reduction='none' gives a loss for every sample; say 'mean' or 'sum'")
    weight, is_sum = options.get("weight"), reduction == "sum"
    if name in _OF_CLASSES:
        ignored = options.get("ignore_index")
        count = partial(_count_targets, weight, _IGNORED if ignored is None else ignored)
        return Terms(is_sum, None if is_sum else count, known=True)
    elementwise = bool(name) and name not in _OF_SAMPLES
    if elementwise and any(_may_weigh_samples(options.get(each)) for each in ("weight", "pos_weight")):
        return Terms(is_sum)  # torch takes weights of elements and of samples alike: it is compared
    return Terms(is_sum, known=bool(name), elementwise=elementwise)


def _may_weigh_samples(weight: Any) -> bool:
    return weight is not None and not (isinstance(weight, Tensor) and weight.numel() == 1)


def _read(fn: LossFn) -> tuple[str, Mapping[str, Any]]:
    """The name of the loss in torch.nn.functional, and its options; no name if it is none of those."""
    if isinstance(fn, nn.Module):
        hooked = fn._forward_hooks or fn._forward_pre_hooks
        names = [name for name, kind in _MODULES.items() if type(fn).forward is kind.forward and not hooked]
        return (names[0] if names else ""), {option: getattr(fn, option, None) for option in _OPTIONS}
    options: Mapping[str, Any] = {}
    if isinstance(fn, partial):
        if fn.args or set(fn.keywords) & {"input", "target", "size_average", "reduce"}:
            return "", {}
        options, fn = fn.keywords, fn.func
    names = [name for name in NAMES.values() if getattr(functional, name) is fn]
    return (names[0], options) if names else ("", {})


def _count_targets(weight: Tensor | None, ignored: int, targets: Tensor) -> float:
    if targets.is_floating_point():  # probabilities of classes: torch divides by the samples, weights or not
        return float(len(targets))
    if weight is not None:
        return float(weight.to(targets.device).double()[targets[targets != ignored]].sum())
    if targets.device.type == "cpu":  # every step asks: numpy takes 4 us for 128 targets, torch 13
        return float(np.count_nonzero(targets.numpy() != ignored))
    return float((targets != ignored).sum())
