"""One worker: nothing to synchronise."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from gradtide.events import Emit, GradientsSynchronised
from gradtide.sync.ways import EveryStep

__all__ = ["Alone"]


class Alone(EveryStep):
    """What a plain PyTorch loop does. It is a group of one: whoever comes forms the next group with it."""

    is_collective, store, servers_step, workers_step, led = True, None, False, True, True

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.reason = "one worker: there is nothing to synchronise"

    def ready(self, index: int, weight: float) -> None:
        pass

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        self._emit(GradientsSynchronised(0))

    def check_step(self) -> None:
        pass

    def step(self, weights: Sequence[float]) -> None:
        pass

    def weigh(self, terms: float, otherwise: float) -> float:
        return 1.0

    def edit(self) -> AbstractContextManager[None]:
        return nullcontext()

    def share_buffers(self, root: int = 0) -> None:
        pass

    def add_up(self, numbers: Tensor) -> Tensor:
        return numbers

    def depart(self) -> None:
        pass

    def begin_again(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass
