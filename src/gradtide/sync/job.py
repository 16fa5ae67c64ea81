"""The processes that train together, as this one sees them."""

import functools
from dataclasses import dataclass, field

from gradtide.collective import Group
from gradtide.environment import read_environment

__all__ = ["Job", "Share", "current_job"]


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of a global batch."""

    samples: int
    of: int  # in the whole batch

    @property
    def weight(self) -> float:
        """How much a mean over this part counts in the mean over the whole batch."""
        return self.samples / self.of


@dataclass(slots=True)
class Job:
    """Who works together. `shard` notes here which part of the batch is ours, and the model reads it."""

    rank: int = 0
    size: int = 1
    store: str | None = None  # the address of the job's parameter servers, if it has any
    share: Share | None = None  # of the batch that is being worked on; None when nobody said
    timeout_s: float = 60.0
    _group: Group | None = field(default=None, repr=False)

    @classmethod
    def of(cls, group: Group, store: str | None = None) -> "Job":
        return cls(group.rank, group.size, store, timeout_s=group.timeout_s, _group=group)

    @property
    def group(self) -> Group | None:
        """The ranks' group, joined when it is first asked for: training over servers needs none. None: one worker."""
        if self._group is None and self.size > 1:
            self._group = Group.from_environment(timeout_s=self.timeout_s)
        return self._group

    @property
    def weight(self) -> float:
        """What this rank's gradient counts: its share of the samples, or, as in DDP, one part in as many as we are."""
        return 1.0 / self.size if self.share is None else self.share.weight


@functools.cache
def current_job() -> Job:
    """The job that this process was started for: by gradtide run, by torchrun, or, with neither, one worker.

    The one thing a process keeps for itself, because `shard(loader)` and `DataParallel(model)` are about the same job.
    """
    around = read_environment()
    store = around.store or None
    if around.launch is None:
        return Job(store=store)
    return Job(around.launch.rank, around.launch.size, store)
