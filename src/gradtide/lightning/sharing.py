"""Whether a Trainer leaves gradients and parameters alone, so that these may be shared: no worker has the whole
gradient then, and none may change parameters by itself."""

from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden

__all__ = ["why_not_shared"]

_SEE_GRADIENTS = ("on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")
_OWN_WAYS = ("configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "backward")


def why_not_shared(trainer: Any, module: Any) -> str:
    """What in this training may look at gradients, or change them or parameters; nothing if nothing does."""
    if not module.automatic_optimization:
        return "optimization is manual"
    if trainer.gradient_clip_val:
        return "gradients are clipped"
    for name in (*_SEE_GRADIENTS, *_OWN_WAYS):
        if is_overridden(name, module, LightningModule):
            return f"{type(module).__name__} has a {name} of its own"
    for callback in trainer.callbacks:
        if isinstance(callback, StochasticWeightAveraging | WeightAveraging):
            return f"the callback {type(callback).__name__} changes parameters"
        for name in _SEE_GRADIENTS:
            if is_overridden(name, callback, Callback):
                return f"the callback {type(callback).__name__} has {name}"
    return ""
