"""The learning rate of each step: the optimizer's own, scaled with the batch and warmed up at the start."""

import math
from dataclasses import dataclass

from gradtide.errors import ConfigError

__all__ = ["LR_SCALINGS", "Rates", "check_rate"]

LR_SCALINGS = ("none", "sqrt", "linear")


def check_rate(lr: float) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise ConfigError(f"learning rate {lr}; it must be above 0")


@dataclass(frozen=True, slots=True)
class Rates:
    """What the optimizer's own learning rates are multiplied by, which follows from the batch's growth and the step.

    k times the batch has k times fewer steps an epoch. `linear` takes steps k times as long (Goyal et al., 2017),
    `sqrt` keeps the variance of the update (Krizhevsky, 2014). Both need a warm-up: the rate rises linearly from
    almost nothing to its full value over the first `warmup_epochs`.
    """

    scaling: str = "none"
    growth: int = 1  # the batch is this many times that of one device
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        if self.scaling not in LR_SCALINGS:
            raise ConfigError(f"unknown learning-rate scaling {self.scaling!r}; choose one of {', '.join(LR_SCALINGS)}")
        if not (self.warmup_epochs >= 0 and math.isfinite(self.warmup_epochs)):
            raise ConfigError(f"warm-up of {self.warmup_epochs} epochs; it must be 0 or more")

    @property
    def full(self) -> float:
        return {"none": 1.0, "sqrt": math.sqrt(self.growth), "linear": float(self.growth)}[self.scaling]

    def at(self, epochs_done: float) -> float:
        """The factor of the step that starts after this many epochs, a fraction counted."""
        if epochs_done >= self.warmup_epochs:
            return self.full
        return self.full * (0.01 + 0.99 * epochs_done / self.warmup_epochs)
