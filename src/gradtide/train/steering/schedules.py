"""A scheduler of torch's, brought to where the run is.

A schedule is a function of how many steps (or epochs) are done, so nothing of it is kept in checkpoints: after a resume
the scheduler is made anew and stepped as often as it had been, which gives the same bits.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gradtide.errors import ConfigError
from gradtide.train.position import Position

if TYPE_CHECKING:
    from gradtide.train.optimizers import Optimizers
    from gradtide.train.steering.rates import Rates

__all__ = ["RateSchedule", "ScheduleFactory"]

ScheduleFactory = Callable[[Optimizer], Any]


class RateSchedule:
    """`schedule=lambda optimizer: CosineAnnealingLR(optimizer, 10)`, stepped after every epoch, or every step."""

    def __init__(self, factory: ScheduleFactory, per: str, rates: "Rates") -> None:
        if per not in ("epoch", "step"):
            raise ConfigError(f"schedule_per={per!r}; say 'epoch' or 'step'")
        if not callable(factory) or isinstance(factory, type):
            raise ConfigError(
                f"schedule is {factory!r}; give a function from an optimizer to a scheduler, as "
                "lambda optimizer: CosineAnnealingLR(optimizer, 10)"
            )
        if rates.scaling != "none" or rates.warmup_epochs:
            raise ConfigError(
                "schedule= and lr_scaling= or warmup_epochs= would both set the learning rate; warm up in the "
                "schedule (SequentialLR, LinearLR), or leave schedule= out"
            )
        self._factory, self._per, self._done = factory, per, 0
        self._scheduler: Any = None

    def follow(self, at: Position, optimizers: "list[Optimizer]", made_by: "Optimizers", *, agreed: bool) -> None:
        """Before a step: the rates are what the schedule says after so many steps, or epochs. `agreed`: on what was
        seen."""
        wanted = at.step if self._per == "step" else at.epoch - 1
        if self._scheduler is None or wanted < self._done:
            self._begin(made_by.begin_schedule(optimizers), agreed)
        elif wanted == self._done:
            return
        while self._done < wanted:
            self._step(at)
        made_by.follow_schedule(optimizers)

    def _begin(self, optimizer: Optimizer, agreed: bool) -> None:
        self._optimizer, self._done = optimizer, 0
        try:
            self._scheduler = self._factory(optimizer)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"schedule: torch says {error}") from error
        if not callable(getattr(self._scheduler, "step", None)):
            raise ConfigError(
                f"schedule gave a {type(self._scheduler).__name__}, which has no step(); give a function from an "
                "optimizer to a scheduler of torch.optim.lr_scheduler"
            )
        if isinstance(self._scheduler, ReduceLROnPlateau) and (self._per == "step" or not agreed):
            raise ConfigError(
                "ReduceLROnPlateau looks at what all workers saw in an epoch, so it steps per epoch, and neither over "
                "servers, where each worker knows its own, nor where workers come and go (--min-workers); take another "
                "schedule"
            )

    def _step(self, at: Position) -> None:
        # It would warn of steps that another object than the one it knows has taken.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        try:
            if isinstance(self._scheduler, ReduceLROnPlateau):
                seen = at.history.validation_loss or at.history.loss
                self._scheduler.step(seen[self._done])
            else:
                self._scheduler.step()
        except ValueError as error:  # OneCycleLR, which was told of fewer steps
            raise ConfigError(f"schedule, after {self._done} {self._per}s: torch says {error}") from error
        self._done += 1
