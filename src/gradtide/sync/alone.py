"""One worker: nothing to synchronise."""

from torch import nn

from gradtide.events import Emit, GradientsSynchronised
from gradtide.sync.ways import Trained

__all__ = ["Alone", "take_step"]


class Alone:
    """What a plain PyTorch loop does."""

    def __init__(self, trained: Trained, emit: Emit) -> None:
        self._trained, self._emit = trained, emit
        self.reason = "one worker: there is nothing to synchronise"

    def ready(self, index: int, weight: float) -> None:
        pass

    def synchronise(self, weight: float) -> None:
        pass

    def step(self, weight: float) -> None:
        self._emit(GradientsSynchronised(0))
        take_step(self._trained)

    def close(self) -> None:
        pass


def take_step(trained: Trained) -> None:
    """The optimizer's own step on synchronised gradients, clipped if asked for; clears them."""
    if trained.clip_norm is not None:
        nn.utils.clip_grad_norm_(trained.parameters, trained.clip_norm)
    trained.optimizer.step()
    trained.optimizer.zero_grad(set_to_none=True)
    for parameter in trained.parameters:
        parameter.grad = None
