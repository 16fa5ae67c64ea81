"""What becomes of shards that are lost. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gradtide.store.wire.messages import Source

__all__ = ["Policy", "Recovery"]

Policy = Literal["empty", "rewind", "continue"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What becomes of shards that are lost: they begin empty, or with the last checkpoint, alone or all together."""

    policy: Policy = "empty"
    last: Callable[[], tuple[str, int] | None] = lambda: None  # the last checkpoint's folder and round
    begin_with: tuple[str, int] | None = None  # a checkpoint for the whole store to begin with

    def first(self, epoch: int) -> tuple[Source, ...]:
        return (Source(epoch, *self.begin_with),) if self.begin_with is not None else ()

    def after_loss(self, epoch: int) -> tuple[Source, ...]:
        found = self.last() if self.policy != "empty" else None
        return (Source(epoch, *found, self.policy == "rewind"),) if found is not None else ()
