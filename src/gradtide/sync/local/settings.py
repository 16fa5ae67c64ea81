"""What a user says of local steps."""

from dataclasses import KW_ONLY, dataclass

from gradtide.errors import ConfigError
from gradtide.store import update
from gradtide.store.rules.updates import is_optimizer
from gradtide.store.wire.messages import UpdateRule

__all__ = ["Local"]

_AVERAGING = update("sgd", lr=1.0)


@dataclass(frozen=True, slots=True)
class Local:
    """`DataParallel(model, optimizer, Local(50))`: workers step by themselves, and are averaged every 50 steps.

    `outer`, such as `gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)`, is an optimizer that takes what all
    workers have changed, on average, as its gradient (DiLoCo). The first `after` steps are taken together, as without.
    """

    every: int
    outer: UpdateRule | None = None
    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("every", self.every, 1), ("after", self.after, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"Local: {name}={value!r} makes no sense; give a number of steps, {least} or more")
        if self.outer is not None and not (isinstance(self.outer, UpdateRule) and is_optimizer(self.outer)):
            raise ConfigError(
                'Local: outer is an optimizer of torch by name, such as gradtide.update("sgd", lr=0.7, momentum=0.9)'
            )
        if self.outer is not None and self.outer.reduce != "mean":
            raise ConfigError("Local: outer takes the mean of what the workers changed; leave reduce= out")

    @property
    def rule(self) -> UpdateRule:
        return _AVERAGING if self.outer is None else self.outer
