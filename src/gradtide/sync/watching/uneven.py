"""Workers with more and with fewer batches: `with model.join():`."""

import contextlib
from collections.abc import Iterator

import torch

from gradtide.errors import ConfigError
from gradtide.sync.job import Job
from gradtide.sync.ways import Way

__all__ = ["UnevenLoops"]


class UnevenLoops:
    """Who still has batches, asked once a step by all."""

    def __init__(self, job: Job) -> None:
        self._job, self.joining = job, False
        self.going: list[int] | None = None  # the ranks that still have batches, in this step

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        self.joining = True
        try:
            yield
        finally:
            self.joining, self.going = False, None

    def weight(self, way: Way) -> float:
        """What this worker's gradient counts: one part in as many as still go on."""
        if self._job.shares:
            raise ConfigError("gradtide.shard gives all workers as many batches; leave model.join() out around it")
        going = self.ask_who_goes_on(way, going=True) if self.going is None else self.going
        return 1.0 / len(going) if self._job.rank in going else 0.0

    def ask_who_goes_on(self, way: Way, *, going: bool) -> list[int]:
        """The ranks that still have batches: asked once a step, by all."""
        asked = torch.zeros(self._job.size, dtype=torch.int64)
        asked[self._job.rank] = going
        self.going = way.add_up(asked).nonzero().flatten().tolist()
        return self.going

    @property
    def first_going(self) -> int:
        """Whose buffers count: those of a rank that still trains."""
        return self.going[0] if self.going else 0
