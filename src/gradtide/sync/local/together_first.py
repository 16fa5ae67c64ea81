"""Local steps over servers, after some that are taken together: two trainings on the servers, one after the other.

At first the servers average gradients, and every worker takes the same step; then the base is made of the parameters
that all have, and each steps by itself.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from torch import Tensor

from gradtide.compress import Compress
from gradtide.events import Emit
from gradtide.store import Store
from gradtide.sync.job import Job
from gradtide.sync.local.servers import LocalOverServers
from gradtide.sync.local.settings import Local
from gradtide.sync.servers import ServersWay
from gradtide.sync.trained import Trained

__all__ = ["TogetherFirst"]


class TogetherFirst:
    """Goes the way that it is on just now."""

    is_collective, servers_step, workers_step, asked_to_look = False, False, True, False

    def __init__(
        self, trained: Trained, job: Job, local: Local, emit: Emit, *, overlap: bool, compress: Compress | None = None
    ) -> None:
        """What is sent is compressed from when each steps by itself."""
        assert local.over is not None
        self._compress = compress
        self._trained, self._job, self._local, self._emit = trained, job, local, emit
        first = replace(local.over, name=f"{local.over.name} together")
        self._steps = 0
        self.now: ServersWay | LocalOverServers = ServersWay(
            trained, job, first, emit, overlap=overlap, workers_step=True
        )

        self.reason = f"{self.now.reason}; after {local.after} steps that are taken together, local steps"

    def stepped(self) -> None:
        self.now.stepped()
        self._steps += 1
        if self._steps == self._local.after:
            self.now.finish()
            self.now.close()
            self.now = LocalOverServers(self._trained, self._job, self._local, self._emit, compress=self._compress)
        self.reason = self.now.reason if self._steps >= self._local.after else self.reason

    def follow(self, trained: Trained) -> None:
        self._trained = trained
        self.now.follow(trained)

    # --- as the way that it is on ---

    @property
    def one_weight(self) -> bool:
        return self.now.one_weight

    @property
    def store(self) -> Store:
        return self.now.store

    @property
    def holds_values(self) -> bool:
        return self.now.holds_values

    @property
    def led(self) -> bool:
        return self.now.led

    @property
    def apart(self) -> int:
        return self.now.apart

    def measure(self, weight: float) -> float:
        return self.now.measure(weight)

    def ready(self, index: int, weight: float) -> None:
        self.now.ready(index, weight)

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        self.now.synchronise(weights, late)

    def saw(self) -> None:
        self.now.saw()

    def check_step(self) -> None:
        self.now.check_step()

    def step(self, weights: Sequence[float]) -> None:
        self.now.step(weights)

    def weigh(self, terms: float, otherwise: float) -> float:
        return self.now.weigh(terms, otherwise)

    def edit(self) -> AbstractContextManager[None]:
        return self.now.edit()

    def share_buffers(self, root: int = 0) -> None:
        self.now.share_buffers(root)

    def add_up(self, numbers: Tensor) -> Tensor:
        return self.now.add_up(numbers)

    def left_out(self) -> dict[str, Tensor]:
        return self.now.left_out()

    def load_left_out(self, state: Mapping[str, Tensor]) -> None:
        self.now.load_left_out(state)

    def uneven(self) -> AbstractContextManager[None]:
        return self.now.uneven()

    def depart(self) -> None:
        self.now.depart()

    def finish(self) -> None:
        self.now.finish()

    def has_in_common(self, tensor: Tensor) -> bool:
        return False

    def ask_to_look(self) -> None:
        """They look where they meet."""

    def begin_again(self) -> None:
        self.now.begin_again()

    def close(self) -> None:
        self.now.close()
