"""What every way to synchronise can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

__all__ = ["Trained", "Way"]


@dataclass(frozen=True, slots=True)
class Trained:
    """What is trained: the parameters that ask for a gradient, by name, and the optimizer that steps them."""

    names: Sequence[str]
    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer
    clip_norm: float | None = None
    buffers: Sequence[tuple[str, torch.Tensor]] = ()

    def group_of(self) -> list[int]:
        """The optimizer's group of each parameter; -1 for one that it does not have."""
        found = {id(p): i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        return [found.get(id(parameter), -1) for parameter in self.parameters]


class Way(Protocol):
    """One way to synchronise."""

    reason: str  # why it is this one, in a sentence

    def ready(self, index: int, weight: float) -> None:
        """The gradient of a parameter is whole; backward goes on. `weight` is what this rank's gradient counts."""

    def synchronise(self, weight: float) -> None:
        """Afterwards every .grad is the one of all ranks. Not every way has such a moment."""

    def step(self, weight: float) -> None:
        """Synchronises what is left, updates the parameters on every rank, and clears the gradients."""

    def close(self) -> None:
        """Lets go of what it holds. Parameters and optimizer state are this process's own, as the last step left them.

        A step that could not be finished, because a peer died, never was.
        """
