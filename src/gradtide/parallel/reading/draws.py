"""Random numbers that are drawn while a worker reads, in its own process.

A dataset that draws there (an augmentation, without processes of the loader) would leave the generators of workers that
were seeded alike at different places, as each reads another part. So either nobody draws, and who does reads whole
batches as one process would; or what is drawn comes from a stream of the worker's own.
"""

import random
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Draws", "FirstWatched", "NoDraws", "OwnDraws", "Watched"]


class _Generators(NamedTuple):
    """Where the generators are that a dataset may draw from without being asked: torch's, NumPy's and Python's."""

    torch: torch.Tensor
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> "_Generators":
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())

    def set(self) -> None:
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def is_at(self, other: "_Generators") -> bool:
        (_, keys, *rest), (_, other_keys, *other_rest) = self.numpy, other.numpy
        alike = rest == other_rest and np.array_equal(keys, other_keys)
        return alike and self.python == other.python and torch.equal(self.torch, other.torch)


class Watched:
    """Nothing may be drawn: who has drawn is told so, and the generators are where they were."""

    def __init__(self) -> None:
        self._before: _Generators | None = None

    def enter(self) -> None:
        """Reading begins."""
        self._before = _Generators.now()

    def leave(self) -> bool:
        """Reading is over: whether something was drawn, that is to be drawn again."""
        before, self._before = self._before, None
        if before is None or before.is_at(_Generators.now()):
            return False
        before.set()
        return True


class FirstWatched(Watched):
    """The same, of the first batch alone: later ones are read by a thread, while others may draw."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = False

    def enter(self) -> None:
        if not self._begun:
            self._begun = True
            super().enter()


class OwnDraws:
    """What is drawn is this worker's own, and the generators outside stay where they are."""

    def __init__(self, seed: int) -> None:
        self._outside: _Generators | None = None
        self._own: _Generators | None = None
        self._seed = seed

    def enter(self) -> None:
        self._outside = _Generators.now()
        if self._own is not None:
            self._own.set()
            return
        torch.default_generator.manual_seed(self._seed % (1 << 63))
        np.random.seed(self._seed % (1 << 32))
        random.seed(self._seed)

    def leave(self) -> bool:
        if self._outside is not None:
            self._own = _Generators.now()
            self._outside.set()
            self._outside = None
        return False


class NoDraws:
    """Processes of the loader read, which have generators of their own."""

    def enter(self) -> None:
        """Nothing to look at."""

    def leave(self) -> bool:
        return False


Draws = Watched | OwnDraws | NoDraws
