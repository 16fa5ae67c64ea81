"""Random numbers of a worker's own inside the wrapper's forward: dropout must not drop the same units everywhere.

Outside of it torch's generator is as the program left it, and so alike on all workers that were seeded alike.
"""

import torch

from gradtide.sync import Job

__all__ = ["WorkerRandom"]

_SPREAD = 0x9E3779B97F4A7C15  # so that neighbouring seeds and ranks have nothing in common


class WorkerRandom:
    """A stream of this worker's own. With one worker there is nothing to tell apart, and torch's own is used."""

    def __init__(self, job: Job) -> None:
        self._outside: torch.Tensor | None = None
        self._own: torch.Tensor | None = None
        if job.size > 1:
            seed = (torch.initial_seed() + (job.rank + 1) * _SPREAD) % (1 << 63)
            self._own = torch.Generator().manual_seed(seed).get_state()

    def enter(self) -> None:
        if self._own is not None:
            self._outside = torch.get_rng_state()
            torch.set_rng_state(self._own)

    def leave(self) -> None:
        if self._outside is not None:
            self._own = torch.get_rng_state()
            torch.set_rng_state(self._outside)
            self._outside = None

    @property
    def state(self) -> torch.Tensor | None:
        """Where the stream is, to be saved; None with one worker."""
        return self._own

    @state.setter
    def state(self, state: torch.Tensor | None) -> None:
        self._own = state
